"""A process's part of a global tensor, as Paddle describes it."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.distributed.tensor import DTensor

from oarlock.checkpoint import Shard
from oarlock.paddle.distributed.communication.group import Group
from oarlock.paddle.distributed.fleet.topology import get_hybrid_communicate_group


@dataclass(frozen=True)
class ShardedWeight:
    """The box of `local_shape` at `global_offset` of a tensor of `global_shape`.

    Attributes:
        local_tensor: [*local_shape]; flattened: [n], the elements `flattened_range` of the flattened box.
        flattened_range: row-major positions in the box.
    """

    key: str
    local_tensor: Tensor
    local_shape: tuple[int, ...]
    global_shape: tuple[int, ...]
    global_offset: tuple[int, ...]
    is_flattened: bool = False
    flattened_range: slice | None = None

    def to_shard(self) -> Shard:
        """The same part, for `oarlock.checkpoint`.

        Raises:
            ValueError: the numbers do not fit each other.
        """
        if isinstance(self.local_tensor, DTensor):
            return Shard.from_dtensor(self.local_tensor)
        if not self.is_flattened:
            return Shard.box(self.local_tensor.view(self.local_shape), self.global_shape, self.global_offset)
        if self.flattened_range is None:
            raise ValueError(f"{self.key} is flattened and has no flattened_range")
        part = Shard.box(self.local_tensor.new_empty(0).expand(self.local_shape), self.global_shape, self.global_offset)
        return Shard.flat(self.local_tensor, self.global_shape, self.flattened_range.start or 0, box=part.pieces[0].box)


ShardedStateDict = dict[str, ShardedWeight]


def shard_weight(key: str, weight: Tensor, axis: int, group: Group) -> ShardedWeight:
    """The part that the place in `group` says, for tensors cut evenly along `axis`.

    Raises:
        ValueError: an axis the tensor does not have.
    """
    if not 0 <= axis < weight.ndim:
        raise ValueError(f"Shard axis {axis} is invalid for tensor with shape {list(weight.shape)}")
    shape, offset = list(weight.shape), [0] * weight.ndim
    offset[axis] = group.rank * shape[axis] if group.nranks > 1 else 0
    shape[axis] *= group.nranks
    return ShardedWeight(key, weight, tuple(weight.shape), tuple(shape), tuple(offset))


def make_tp_sharded_weight_for_checkpoint(key: str, tensor: Tensor, tensor_parallel_axis: int = 0) -> ShardedWeight:
    """The part of a tensor that the tensor-parallel processes share."""
    return shard_weight(key, tensor, tensor_parallel_axis, get_hybrid_communicate_group().get_model_parallel_group())


def make_replicated_sharded_weight(key: str, tensor: Tensor) -> ShardedWeight:
    """A tensor that every process holds wholly."""
    shape = tuple(tensor.shape)
    return ShardedWeight(key, tensor, shape, shape, (0,) * len(shape))


def build_sharded_state_dict(
    state_dict: Mapping[str, Tensor], shard_rules: Mapping[str, int] | None = None, prefix: str = ""
) -> ShardedStateDict:
    """The parts of a state dict: those named in `shard_rules` are cut along an axis, the others whole."""
    rules = shard_rules or {}
    return {
        prefix + name: make_tp_sharded_weight_for_checkpoint(prefix + name, tensor, rules[name])
        if name in rules
        else make_replicated_sharded_weight(prefix + name, tensor)
        for name, tensor in state_dict.items()
    }


def create_sharded_weight_with_new_local(
    new_key: str, new_local_tensor: Tensor, reference_tensor: ShardedWeight
) -> ShardedWeight:
    """Another tensor of the same local shape, such as a moment, at the same place.

    Raises:
        ValueError: another shape.
    """
    if tuple(new_local_tensor.shape) != tuple(reference_tensor.local_shape):
        raise ValueError(
            f"Shape mismatch: new_local_tensor has shape {list(new_local_tensor.shape)}, "
            f"but expected shape {reference_tensor.local_shape} (from reference_tensor.local_shape)."
        )
    place = reference_tensor
    return ShardedWeight(new_key, new_local_tensor, place.local_shape, place.global_shape, place.global_offset)
