"""Named axes over the processes of a job: pipeline, data, context and tensor, and expert folded over data x context.

    mesh = Mesh.build(data=-1, tensor=2)
    mesh.size("tensor"), mesh.rank("data"), mesh.group("data")

The interface is the same without any process group: every axis then has size 1, rank 0 and no group.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from oarlock.parallel.data import check_replicas, reduce_gradients, sum_scalars
from oarlock.ranks import JobError, Ranks

T = TypeVar("T")

DENSE_AXES = ("pipeline", "data", "context", "tensor")
EXPERT_AXES = ("pipeline", "expert_data", "expert", "tensor")
AXES = (*DENSE_AXES, "expert_data", "expert")
REPLICA_AXES = ("data", "context")


@dataclass(frozen=True)
class _Axis:
    size: int
    rank: int
    group: dist.ProcessGroup | None


class Mesh:
    """The processes of a job as a grid with named axes; build it with Mesh.build."""

    def __init__(self, axes: dict[str, _Axis], dense: DeviceMesh | None, experts: DeviceMesh | None) -> None:
        self._axes = axes
        self._dense = dense
        self._experts = experts

    @classmethod
    def build(
        cls,
        data: int = -1,
        context: int = 1,
        tensor: int = 1,
        pipeline: int = 1,
        expert: int = 1,
        *,
        device_type: str | None = None,
    ) -> Self:
        """Lay the processes out as pipeline x data x context x tensor, the tensor axis over neighbouring ranks.

        The experts of a mixture-of-experts layer are spread over processes that otherwise hold different data: the
        same processes are also laid out as pipeline x expert_data x expert x tensor, where the flat index of data and
        context, d * context + c, is expert_data * expert + e. Expert parameters are replicated over `expert_data`
        (of size data * context / expert), all other parameters over `data` and `context`.

        Args:
            data, context, tensor, pipeline: sizes of the axes; one of them may be -1, which takes what the number of
                processes leaves.
            expert: processes that share out the experts; divides data * context.
            device_type: of the DeviceMesh; None = cuda if the process group has NCCL, else cpu.

        Raises:
            ValueError: the sizes do not multiply to the number of processes; the message does the arithmetic.
        """
        num_processes = dist.get_world_size() if dist.is_initialized() else None
        sizes = {"pipeline": pipeline, "data": data, "context": context, "tensor": tensor}
        sizes = _infer(sizes, num_processes or 1)
        replicas = sizes["data"] * sizes["context"]
        if expert < 1 or replicas % expert:
            raise ValueError(
                f"expert={expert} must divide data x context = {sizes['data']} x {sizes['context']} = {replicas}"
            )
        all_sizes = {**sizes, "expert_data": replicas // expert, "expert": expert}
        if num_processes is None:
            return cls({name: _Axis(size, 0, None) for name, size in all_sizes.items()}, None, None)
        if device_type is None:
            device_type = "cuda" if "nccl" in dist.get_backend_config() else "cpu"
        dense = _device_mesh(device_type, DENSE_AXES, all_sizes)
        experts = _device_mesh(device_type, EXPERT_AXES, all_sizes)
        axes = {}
        for name in AXES:
            mesh = dense if name in DENSE_AXES else experts
            axes[name] = _Axis(all_sizes[name], mesh.get_local_rank(name), mesh.get_group(name))
        return cls(axes, dense, experts)

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Names of the axes, outermost first; `expert_data` and `expert` last."""
        return tuple(self._axes)

    def size(self, axis: str) -> int:
        """Number of processes along an axis."""
        return self._axis(axis).size

    def rank(self, axis: str) -> int:
        """This process's place along an axis, 0 <= rank < size."""
        return self._axis(axis).rank

    def group(self, axis: str) -> dist.ProcessGroup | None:
        """The processes that differ from this one only along an axis; None without torch.distributed."""
        return self._axis(axis).group

    @property
    def num_replicas(self) -> int:
        """Processes that hold the same dense parameters: data x context."""
        return self.size("data") * self.size("context")

    @property
    def replica(self) -> int:
        """This process's place among them: d * context + c."""
        return self.rank("data") * self.size("context") + self.rank("context")

    def submesh(self, *axes: str) -> "Mesh":
        """The mesh with some of the axes only, the others fixed at this process's place.

        Raises:
            ValueError: an unknown axis, or `expert` and `data` or `context` together (they share processes).
        """
        for axis in axes:
            self._axis(axis)
        names = [name for name in self._axes if name in axes]
        if not names:
            raise ValueError("a submesh needs at least one axis")
        if not (set(names) <= set(DENSE_AXES) or set(names) <= set(EXPERT_AXES)):
            raise ValueError(
                f"the axes {', '.join(names)} do not form one grid: expert is folded over data x context; "
                f"take them from {DENSE_AXES} or from {EXPERT_AXES}"
            )
        parts = [
            mesh[tuple(n for n in order if n in names)] if mesh is not None and set(names) <= set(order) else None
            for mesh, order in ((self._dense, DENSE_AXES), (self._experts, EXPERT_AXES))
        ]
        return Mesh({name: self._axes[name] for name in names}, *parts)

    @property
    def device_mesh(self) -> DeviceMesh | None:
        """The axes as a torch DeviceMesh, for DTensor and FSDP2: without expert axes unless it is a submesh that has
        them; None without torch.distributed."""
        return self._dense if self._dense is not None else self._experts

    def sum_gradients(self, module: nn.Module) -> None:
        """Replace every gradient by its sum over the replicas (data and context); see reduce_gradients.

        Parameters that are spread over the expert axis have fewer replicas: reduce them over `expert_data` instead.
        """
        for group in self._replicas():
            reduce_gradients(module.parameters(), group, mean=False)

    def sum_scalars(self, values: Sequence[float]) -> list[float]:
        """Sum each of some numbers over the replicas (data and context) in float64."""
        totals = list(map(float, values))
        for group in self._replicas():
            totals = sum_scalars(totals, group)
        return totals

    def check_same_parameters(self, module: nn.Module) -> None:
        """Raise JobError unless the replicas hold the same parameters and buffers; see check_replicas."""
        for group in self._replicas():
            check_replicas([*module.named_parameters(), *module.named_buffers()], group)

    def barrier(self) -> None:
        """Wait for all processes of the job."""
        Ranks().gather(None)

    def first_rank_first(self, action: Callable[[], T]) -> T:
        """Run `action` on rank 0 of the job, then on all others, which so find what it left on the disk.

        Raises:
            JobError: on the other ranks, if `action` failed on rank 0, which raises its own error.
        """
        result = self.first_rank_only(action)
        return action() if result is None and Ranks().rank > 0 else result  # type: ignore[return-value]

    def first_rank_only(self, action: Callable[[], T]) -> T | None:
        """Run `action` on rank 0 of the job while all others wait; they return None. Errors as in first_rank_first."""
        ranks = Ranks()
        result, error = None, None
        if ranks.rank == 0:
            try:
                result = action()
            except BaseException as caught:
                error = caught
        reason = ranks.gather(None if error is None else f"{type(error).__name__}: {error}")[0]
        if error is not None:
            raise error
        if reason is not None:
            raise JobError(f"rank 0 failed: {reason}")
        return result

    def _replicas(self) -> list[dist.ProcessGroup | None]:
        return [self.group(axis) for axis in REPLICA_AXES if axis in self._axes and self.size(axis) > 1]

    def __repr__(self) -> str:
        return "Mesh(" + ", ".join(f"{name}={axis.rank}/{axis.size}" for name, axis in self._axes.items()) + ")"

    def _axis(self, name: str) -> _Axis:
        if name not in self._axes:
            raise ValueError(f"no axis {name!r}; this mesh has {', '.join(self._axes)}")
        return self._axes[name]


def _infer(sizes: dict[str, int], num_processes: int) -> dict[str, int]:
    for name, size in sizes.items():
        if size != -1 and size < 1:
            raise ValueError(f"{name}={size} must be >= 1, or -1 to take what the other axes leave")
    unknown = [name for name, size in sizes.items() if size == -1]
    known = math.prod(size for size in sizes.values() if size != -1)
    product = " x ".join(f"{name} {size}" for name, size in sizes.items() if size != -1)
    if len(unknown) > 1:
        raise ValueError(f"only one axis can be -1, got {' and '.join(unknown)}")
    if not unknown and known != num_processes:
        raise ValueError(f"{product} = {known}, but there are {num_processes} processes; make one axis -1 to fit it")
    if unknown and num_processes % known:
        raise ValueError(
            f"{unknown[0]}=-1 cannot be inferred: {num_processes} processes / ({product} = {known}) is not whole"
        )
    return {name: num_processes // known if size == -1 else size for name, size in sizes.items()}


def _device_mesh(device_type: str, names: tuple[str, ...], sizes: dict[str, int]) -> DeviceMesh:
    return init_device_mesh(device_type, tuple(sizes[name] for name in names), mesh_dim_names=names)
