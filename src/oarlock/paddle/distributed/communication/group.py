"""Process groups as Paddle shows them, over those of torch.distributed; a process alone is a group of one."""

import datetime
import os
from collections.abc import Sequence
from typing import Any, Self

import torch
import torch.distributed as dist

_groups: dict[int, "Group"] = {}


class Group:
    """Some processes of the job, by their global ranks.

    Attributes:
        ranks: the global ranks, in the group's order.
        id: a number that is the same in all processes that made their groups in the same order; 0 = all processes.
        process_group: torch's group, None for a process alone.
    """

    def __init__(self, ranks: Sequence[int], id: int, process_group: dist.ProcessGroup | None) -> None:
        self.ranks = list(ranks)
        self.id = id
        self.process_group = process_group

    @property
    def rank(self) -> int:
        """This process's place in the group, -1 outside of it."""
        return self.get_group_rank(get_rank())

    @property
    def nranks(self) -> int:
        """The number of processes."""
        return len(self.ranks)

    world_size = nranks

    @property
    def name(self) -> str:
        """Paddle's name of a group."""
        return "_default_pg" if self.id == 0 else f"_default_pg{self.id}"

    @property
    def backend(self) -> str:
        """What carries its messages."""
        return dist.get_backend(self.process_group) if dist.is_initialized() else "none"

    def is_member(self) -> bool:
        """Whether this process belongs to a group of more than one."""
        return self.rank >= 0 and self.nranks >= 2

    def get_group_rank(self, rank: int) -> int:
        """The place of a global rank in the group, -1 outside of it."""
        return self.ranks.index(rank) if rank in self.ranks else -1

    def get_global_rank(self, rank: int) -> int:
        """The global rank at a place of the group."""
        return self.ranks[rank]

    def to_json(self) -> str:
        """For configurations that hold a group."""
        return repr(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy of what holds a group still speaks to the same processes."""
        return self

    def __repr__(self) -> str:
        return f"rank: {self.rank}, nranks: {self.nranks}, id: {self.id}, ranks: {self.ranks}, name: {self.name}"


def is_available() -> bool:
    """Whether torch was built with torch.distributed."""
    return dist.is_available()


def is_initialized() -> bool:
    """Whether this process has joined others."""
    return dist.is_initialized()


def get_rank(group: Group | None = None) -> int:
    """This process's number among all, or in a group (-1 outside of it)."""
    if group is not None:
        return group.rank
    return dist.get_rank() if dist.is_initialized() else 0


def get_world_size(group: Group | None = None) -> int:
    """The number of processes, of all or of a group."""
    if group is not None:
        return group.nranks
    return dist.get_world_size() if dist.is_initialized() else 1


def init_parallel_env() -> Group:
    """Join the processes that torchrun or `paddle.distributed.launch` has started; alone, nothing happens.

    Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or Paddle's PADDLE_TRAINER_ID, PADDLE_TRAINERS_NUM and
    PADDLE_MASTER; and PADDLE_DISTRI_BACKEND, "nccl" or "gloo", where the usual one is not wanted.
    """
    if not dist.is_initialized():
        for ours, theirs in (("RANK", "PADDLE_TRAINER_ID"), ("WORLD_SIZE", "PADDLE_TRAINERS_NUM")):
            if ours not in os.environ and theirs in os.environ:
                os.environ[ours] = os.environ[theirs]
        if "MASTER_ADDR" not in os.environ and "PADDLE_MASTER" in os.environ:
            address, _, port = os.environ["PADDLE_MASTER"].rpartition(":")
            os.environ.update(MASTER_ADDR=address, MASTER_PORT=port)
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            usual = "nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(os.environ.get("PADDLE_DISTRI_BACKEND", usual))
            _groups.clear()
    return get_group(0)


def new_group(
    ranks: Sequence[int] | None = None,
    backend: str | None = None,
    timeout: datetime.timedelta = datetime.timedelta(minutes=30),
    nccl_comm_init_option: int = 0,
) -> Group:
    """A group of some processes; every process makes every group, in the same order.

    Raises:
        ValueError: a rank that is not there, or twice.
    """
    chosen = list(range(get_world_size())) if ranks is None else sorted(ranks)
    if len(set(chosen)) != len(chosen) or not all(0 <= rank < get_world_size() for rank in chosen):
        raise ValueError(
            f"new_group() got ranks {list(ranks or ())}, of {get_world_size()} processes: 0 to n-1, each once"
        )
    get_group(0)
    made = dist.new_group(chosen, timeout=timeout, backend=backend) if dist.is_initialized() else None
    handle = made if isinstance(made, dist.ProcessGroup) else None  # a number stands for a group of others
    group = Group(chosen, max(_groups) + 1, handle)
    _groups[group.id] = group
    return group


def get_group(id: int = 0) -> Group:
    """The group of a number; 0 is that of all processes.

    Raises:
        ValueError: there is none.
    """
    if id == 0 and (0 not in _groups or _groups[0].nranks != get_world_size()):
        _groups[0] = Group(range(get_world_size()), 0, dist.group.WORLD if dist.is_initialized() else None)
    if id not in _groups:
        raise ValueError(f"there is no group {id}; there are {sorted(_groups)}")
    return _groups[id]


def get_backend(group: Group | None = None) -> str:
    """What carries messages, "GLOO" or "NCCL"."""
    return (get_group(0) if group is None else group).backend.upper()


def destroy_process_group(group: Group | None = None) -> None:
    """Leave a group, or all of them."""
    if dist.is_initialized():
        dist.destroy_process_group(None if group is None else group.process_group)
    if group is None:
        _groups.clear()
    else:
        _groups.pop(group.id, None)


class ParallelEnv:
    """What a process knows of its place."""

    rank = property(lambda self: get_rank(), doc="This process's number.")
    world_size = property(lambda self: get_world_size(), doc="How many there are.")
    nranks = world_size
    local_rank = property(lambda self: int(os.environ.get("LOCAL_RANK", "0")), doc="The number on this machine.")
    device_id = local_rank
    dev_id = local_rank
