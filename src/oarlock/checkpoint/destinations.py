"""What speaks against filling a tensor: found out before anything is written."""

import torch
from torch import Tensor

from oarlock.checkpoint.aoa.values import Cast, is_possible
from oarlock.checkpoint.derived import Derived
from oarlock.checkpoint.shards import Shard
from oarlock.checkpoint.stored import StoredTensor


def unusable(tensor: Tensor) -> str | None:
    """Why a tensor cannot be written in place, or None."""
    if tensor.device.type == "meta":
        return "the destination is a meta tensor without memory; materialize it first (to_empty)"
    if tensor.layout != torch.strided or tensor.is_quantized:
        return f"the destination is not dense ({tensor.layout}, {tensor.dtype}); load into a dense tensor"
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        return "the destination was made in inference mode; load in torch.inference_mode(), or into a clone of it"
    if not tensor.numel():
        return None
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        return f"the destination is expanded (strides {list(tensor.stride())}), so its elements share memory"
    if _overlaps_itself(tensor):
        return f"elements of the destination share memory (shape {list(tensor.shape)}, strides {list(tensor.stride())})"
    return None


def unfit(source: StoredTensor | Derived, shard: Shard, cast: bool) -> str | None:
    """Why a stored tensor is not what a destination wants, or None."""
    if source.shape != shard.shape:
        return f"the checkpoint has shape {list(source.shape)}, the destination {list(shard.shape)}"
    if source.dtype == shard.dtype:
        return None
    if not cast:
        return f"the checkpoint has {source.dtype}, the destination {shard.dtype}; pass cast=True to convert"
    if not is_possible(Cast(source.dtype, shard.dtype), source.dtype):
        return f"torch has no cast from {source.dtype} to {shard.dtype}"
    return None


def _overlaps_itself(tensor: Tensor) -> bool:
    """Whether a stride, from the smallest on, does not reach beyond all that the smaller ones reach."""
    reach = 0
    for stride, size in sorted((t, n) for t, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False
