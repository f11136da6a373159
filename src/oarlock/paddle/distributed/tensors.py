"""Distributed tensors under Paddle's names: a ProcessMesh is a DeviceMesh, a distributed tensor a DTensor."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from oarlock.paddle.distributed.communication.group import Group
from oarlock.paddle.dtypes import as_dtype

__all__ = ["Partial", "Placement", "ProcessMesh", "Replicate", "Shard"]


class ProcessMesh:
    """Processes in a grid of named axes.

    Args:
        mesh: nested lists, or an array, of global ranks.
        dim_names: a name for each axis; d0, d1, ... without.

    Raises:
        ValueError: names that do not fit the axes.
    """

    def __init__(self, mesh: Any, dim_names: Sequence[str] | None = None) -> None:
        self.mesh = np.array(mesh)
        self.dim_names = [f"d{i}" for i in range(self.mesh.ndim)] if dim_names is None else list(dim_names)
        if len(self.dim_names) != self.mesh.ndim or len(set(self.dim_names)) != self.mesh.ndim:
            raise ValueError(
                f"a mesh of shape {list(self.mesh.shape)} needs {self.mesh.ndim} names, got {self.dim_names}"
            )
        self._device_mesh: DeviceMesh | None = None

    @property
    def shape(self) -> list[int]:
        """The sizes of the axes."""
        return list(self.mesh.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.mesh.ndim

    @property
    def process_ids(self) -> list[int]:
        """The global ranks, in row-major order."""
        return self.mesh.ravel().tolist()

    @property
    def device_mesh(self) -> DeviceMesh:
        """Torch's mesh of the same processes.

        Raises:
            RuntimeError: no process group yet.
        """
        if not dist.is_initialized():
            raise RuntimeError("a mesh needs the processes: call paddle.distributed.init_parallel_env() under torchrun")
        if self._device_mesh is None:
            kind = "cuda" if torch.cuda.is_available() else "cpu"
            self._device_mesh = DeviceMesh(kind, torch.from_numpy(self.mesh), mesh_dim_names=tuple(self.dim_names))
        return self._device_mesh

    def get_dim_size(self, dim_name: str) -> int:
        """The size of an axis."""
        return self.mesh.shape[self.dim_names.index(dim_name)]

    def get_rank_by_dim_and_process_id(self, dim_name: str, process_id: int) -> int:
        """Where a process stands on an axis, -1 outside of the mesh."""
        places = np.argwhere(self.mesh == process_id)
        return int(places[0][self.dim_names.index(dim_name)]) if len(places) else -1

    def get_group(self, dim_name: str | None = None) -> Group:
        """The processes that differ from this one on one axis only.

        Raises:
            ValueError: no name, for a mesh of several axes.
        """
        if dim_name is None and self.ndim > 1:
            raise ValueError(f"a mesh of {self.ndim} axes needs dim_name, one of {self.dim_names}")
        handle = self.device_mesh.get_group(dim_name or self.dim_names[0])
        ranks = dist.get_process_group_ranks(handle)
        return Group(ranks, max(1, hash(tuple(ranks)) & 0xFFFF), handle)

    def __getitem__(self, index: Any) -> "ProcessMesh":
        part = self.mesh[index]
        if isinstance(index, str):
            raise TypeError("a mesh is indexed by numbers; get_group(dim_name) gives an axis")
        return ProcessMesh(np.atleast_1d(part), self.dim_names[-max(part.ndim, 1) :])

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ProcessMesh)
            and np.array_equal(self.mesh, other.mesh)
            and self.dim_names == other.dim_names
        )

    def __hash__(self) -> int:
        return hash((tuple(self.process_ids), tuple(self.shape), tuple(self.dim_names)))

    def __repr__(self) -> str:
        return f"{{shape: {self.shape}, process_ids: {self.process_ids}, dim_names: {self.dim_names}}}"


def shard_tensor(
    data: Any,
    mesh: ProcessMesh,
    placements: Sequence[Placement],
    dtype: Any = None,
    place: Any = None,
    stop_gradient: bool | None = None,
) -> DTensor:
    """Spread a tensor that every process holds wholly; a parameter stays a parameter."""
    tensor = data if isinstance(data, Tensor) else torch.as_tensor(np.asarray(data))
    if dtype is not None:
        tensor = tensor.to(as_dtype(dtype))
    made = distribute_tensor(tensor.detach(), mesh.device_mesh, list(placements))
    needs_gradient = tensor.requires_grad if stop_gradient is None else not stop_gradient
    if isinstance(data, nn.Parameter):
        return nn.Parameter(made, requires_grad=needs_gradient)  # type: ignore[return-value]
    made.requires_grad_(needs_gradient)
    return made


def reshard(dist_tensor: DTensor, mesh: ProcessMesh, placements: Sequence[Placement]) -> DTensor:
    """Another layout, on the same mesh or on another one of the same processes; gradients flow through."""
    if dist_tensor.device_mesh == mesh.device_mesh:
        return dist_tensor.redistribute(mesh.device_mesh, list(placements))
    return distribute_tensor(dist_tensor.full_tensor(), mesh.device_mesh, list(placements))


def dtensor_from_fn(
    fn: Callable[..., Tensor], mesh: ProcessMesh, placements: Sequence[Placement], *args: Any, **kwargs: Any
) -> DTensor:
    """What `fn(*args, **kwargs)` makes, spread."""
    return shard_tensor(fn(*args, **kwargs), mesh, placements)


def unshard_dtensor(dist_tensor: DTensor) -> Tensor:
    """The whole tensor, on every process."""
    return dist_tensor.full_tensor()


def shard_layer(
    layer: nn.Module,
    process_mesh: ProcessMesh,
    shard_fn: Callable[[str, nn.Module, ProcessMesh], None] | None = None,
    input_fn: Callable[[Any, ProcessMesh], Any] | None = None,
    output_fn: Callable[[Any, ProcessMesh], Any] | None = None,
) -> nn.Module:
    """Spread the parameters of a layer in place: `shard_fn(name, sublayer, mesh)` some, the others are replicated."""
    replicated = [Replicate()] * process_mesh.ndim
    for name, part in layer.named_modules():
        if shard_fn is not None:
            shard_fn(name, part, process_mesh)
        for key, parameter in list(part.named_parameters(recurse=False)):
            if not isinstance(parameter, DTensor):
                setattr(part, key, shard_tensor(parameter, process_mesh, replicated))
    if input_fn is not None:
        layer.register_forward_pre_hook(lambda _, inputs: input_fn(inputs, process_mesh))
    if output_fn is not None:
        layer.register_forward_hook(lambda _, inputs, outputs: output_fn(outputs, process_mesh))
    return layer


_mesh: ProcessMesh | None = None


def set_mesh(mesh: ProcessMesh) -> None:
    """The mesh that functions without one use."""
    global _mesh
    _mesh = mesh


def get_mesh() -> ProcessMesh | None:
    """The mesh of `set_mesh`."""
    return _mesh
