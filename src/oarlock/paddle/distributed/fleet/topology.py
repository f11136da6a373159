"""Hybrid parallelism: the processes as a grid of pipeline, sharding, data, segment and tensor axes."""

import itertools
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

from oarlock.paddle.distributed.communication.group import Group, get_rank, get_world_size, init_parallel_env, new_group

ORDER = ("dp", "pp", "sharding", "sep", "mp")  # neighbouring ranks differ on the last axis


@dataclass
class DistributedStrategy:
    """How many processes each kind of parallelism takes. A `dp_degree` of -1 takes what is left.

    `strategy.hybrid_configs = {"mp_degree": 2, "pp_degree": 1}` changes the degrees that are named.
    """

    hybrid_configs: dict[str, Any] = field(default_factory=dict)

    def degrees(self) -> dict[str, int]:
        """The size of each axis.

        Raises:
            ValueError: they do not multiply to the number of processes.
        """
        total = get_world_size()
        found = {axis: int(self.hybrid_configs.get(f"{axis}_degree", -1 if axis == "dp" else 1)) for axis in ORDER}
        others = 1
        for axis, degree in found.items():
            others *= degree if axis != "dp" else 1
        if found["dp"] == -1:
            found["dp"] = max(total // others, 1)
        if found["dp"] * others != total:
            raise ValueError(f"the degrees {found} make {found['dp'] * others} processes, there are {total}")
        return found


class HybridCommunicateGroup:
    """This process's place on every axis, and the processes that share all its other places."""

    def __init__(self, strategy: DistributedStrategy) -> None:
        self.degrees = strategy.degrees()
        sizes = [self.degrees[axis] for axis in ORDER]
        places = list(itertools.product(*map(range, sizes)))
        self.place = dict(zip(ORDER, places[get_rank()], strict=True))
        self.groups = {axis: self._along(axis, places) for axis in ORDER}
        self.everyone = new_group(list(range(get_world_size())))

    def _along(self, axis: str, places: list[tuple[int, ...]]) -> Group:
        """All processes make all groups of an axis; the one with this process is returned."""
        at = ORDER.index(axis)
        lines: dict[tuple[int, ...], list[int]] = {}
        for rank, place in enumerate(places):
            lines.setdefault(place[:at] + place[at + 1 :], []).append(rank)
        made = [new_group(ranks) for ranks in lines.values()]
        return next(group for group in made if get_rank() in group.ranks)

    def get_data_parallel_group(self) -> Group:
        """The processes with other data and the same weights."""
        return self.groups["dp"]

    def get_data_parallel_rank(self) -> int:
        """The place among them."""
        return self.place["dp"]

    def get_data_parallel_world_size(self) -> int:
        """Their number."""
        return self.degrees["dp"]

    def get_data_parallel_group_src_rank(self) -> int:
        """The first of them."""
        return self.groups["dp"].ranks[0]

    def get_model_parallel_group(self) -> Group:
        """The processes that share each layer (tensor parallelism)."""
        return self.groups["mp"]

    def get_model_parallel_rank(self) -> int:
        """The place among them."""
        return self.place["mp"]

    def get_model_parallel_world_size(self) -> int:
        """Their number."""
        return self.degrees["mp"]

    def get_model_parallel_group_src_rank(self) -> int:
        """The first of them."""
        return self.groups["mp"].ranks[0]

    def get_pipe_parallel_group(self) -> Group:
        """The processes that hold the stages of one pipeline."""
        return self.groups["pp"]

    def get_stage_id(self) -> int:
        """This process's stage."""
        return self.place["pp"]

    get_pipe_parallel_rank = get_stage_id

    def get_pipe_parallel_world_size(self) -> int:
        """The number of stages."""
        return self.degrees["pp"]

    def get_sharding_parallel_group(self) -> Group:
        """The processes that share the states of the optimizer."""
        return self.groups["sharding"]

    def get_sharding_parallel_rank(self) -> int:
        """The place among them."""
        return self.place["sharding"]

    def get_sharding_parallel_world_size(self) -> int:
        """Their number."""
        return self.degrees["sharding"]

    def get_sharding_parallel_group_src_rank(self) -> int:
        """The first of them."""
        return self.groups["sharding"].ranks[0]

    def get_sep_parallel_group(self) -> Group:
        """The processes that share each sequence (context parallelism)."""
        return self.groups["sep"]

    def get_sep_parallel_rank(self) -> int:
        """The place among them."""
        return self.place["sep"]

    def get_sep_parallel_world_size(self) -> int:
        """Their number."""
        return self.degrees["sep"]

    def get_sep_parallel_group_src_rank(self) -> int:
        """The first of them."""
        return self.groups["sep"].ranks[0]

    def get_global_rank(self) -> int:
        """This process's number among all."""
        return get_rank()

    def get_check_parallel_group(self) -> Group:
        """All processes."""
        return self.everyone


_current: HybridCommunicateGroup | None = None


def init(role_maker: Any = None, is_collective: bool = True, strategy: DistributedStrategy | None = None) -> None:
    """Join the other processes and lay them out.

    Raises:
        ValueError: parameter servers were asked for (`is_collective=False`), or the degrees do not fit.
    """
    global _current
    if not is_collective:
        raise ValueError("parameter servers do not exist here; use fleet.init(is_collective=True)")
    init_parallel_env()
    _current = HybridCommunicateGroup(strategy or DistributedStrategy())


def get_hybrid_communicate_group() -> HybridCommunicateGroup:
    """The layout of `fleet.init`; without it, that of data parallelism over whoever is there.

    Raises:
        RuntimeError: several processes, and `fleet.init` was not called.
    """
    global _current
    if _current is None:
        if dist.is_initialized() and get_world_size() > 1:
            raise RuntimeError("call paddle.distributed.fleet.init(strategy=...) first")
        _current = HybridCommunicateGroup(DistributedStrategy())
    return _current
