"""Checks of the arguments of an attention call, with the fix in the message.

Legend: B batch, Sq query rows, Sk keys, Hq/Hk query and key heads, Hm mask heads, D head dim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from oarlock.attention.block_plan import BLOCK
from oarlock.attention.masks import ColumnMask, check_bounds

if TYPE_CHECKING:
    from oarlock.attention.context_parallel import ContextPlan


def cast_for_autocast(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tensors in autocast's dtype where it is on, as torch's own attention does."""
    if isinstance(query, Tensor) and torch.is_autocast_enabled(query.device.type) and query.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(query.device.type)
        return query.to(dtype), key.to(dtype), value.to(dtype)
    return query, key, value


def check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Rank, dtype, device and shapes that fit together."""
    if (
        query.__class__ is key.__class__ is value.__class__ is Tensor
        and query.dtype is key.dtype is value.dtype
        and query.dtype.is_floating_point
        and query.device == key.device == value.device
        and query.dim() == key.dim() == value.dim() == 4
    ):
        batch, _, num_heads, head_dim = query.shape
        batch_k, seqlen_k, num_heads_k, head_dim_k = key.shape
        batch_v, seqlen_v, num_heads_v, _ = value.shape
        if (batch, head_dim, batch_k, seqlen_k, num_heads_k) == (
            *(batch_k, head_dim_k, batch_v, seqlen_v, num_heads_v),
        ) and (head_dim and num_heads_k and num_heads % num_heads_k == 0):
            return
    _explain_tensors(query, key, value)


def _explain_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    for argument, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{argument} must be a torch.Tensor, got {type(x).__name__}")
        if x.dim() != 4:
            raise ValueError(f"{argument} must have shape [batch, sequence, heads, head_dim], got {list(x.shape)}")
        if x.dtype != query.dtype or x.device != query.device:
            raise TypeError(
                f"{argument} is {x.dtype} on {x.device}, query is {query.dtype} on {query.device}; they must agree"
            )
        if not x.dtype.is_floating_point:
            raise TypeError(f"{argument} must have a floating-point dtype, got {x.dtype}")
    shapes = f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        raise ValueError(f"batch sizes differ: {shapes}")
    if key.shape[1:3] != value.shape[1:3]:
        raise ValueError(f"key and value differ in sequence length or heads: {shapes}")
    if query.shape[3] != key.shape[3]:
        raise ValueError(f"query and key differ in head_dim: {shapes}")
    if query.shape[3] == 0:
        raise ValueError(f"head_dim must be at least 1: {shapes}")
    if key.shape[2] == 0 or query.shape[2] % key.shape[2]:
        raise ValueError(f"the {query.shape[2]} query heads must be a multiple of the {key.shape[2]} key heads")


def check_mask(
    query: Tensor,
    key: Tensor,
    given: Tensor | ColumnMask,
    causal: bool,
    window_size: object,
    plan: ContextPlan | None = None,
) -> tuple[Tensor, bool]:
    """The bounds of the given mask and whether it is causal; they fit the tensors, or the whole sequence of a plan."""
    if window_size is not None:
        raise ValueError("window_size and startend_row_indices exclude each other; put the window into the mask")
    seqlen_q, seqlen_k = query.shape[1], key.shape[1]
    num_heads, num_heads_k = query.shape[2], key.shape[2]
    if plan is not None:
        seqlen_q = seqlen_k = plan.seqlen
    if isinstance(given, ColumnMask):
        if causal and not given.causal:
            raise ValueError("causal=True contradicts the ColumnMask, which is not causal; leave the argument out")
        bounds, causal = given.bounds, given.causal
        if (given.seqlen_q, bounds.shape[2]) != (seqlen_q, seqlen_k):
            raise ValueError(
                f"the mask is for {given.seqlen_q} rows and {bounds.shape[2]} keys, "
                f"{_lengths(seqlen_q, seqlen_k, plan)}"
            )
    else:
        bounds = given
        check_bounds(bounds, causal)
        if bounds.shape[2] != seqlen_k:
            raise ValueError(
                f"startend_row_indices {list(bounds.shape)} must have shape [batch, heads, seqlen_k, n]: one column "
                f"per key; {_lengths(seqlen_q, seqlen_k, plan)}"
            )
    batch, num_mask_heads = bounds.shape[0], bounds.shape[1]
    if batch not in (1, query.shape[0]):
        raise ValueError(f"the mask has batch size {batch}, query has {query.shape[0]}")
    if num_mask_heads not in (1, num_heads_k, num_heads):
        raise ValueError(
            f"the mask has {num_mask_heads} heads; allowed are 1, {num_heads_k} (key) and {num_heads} (query)"
        )
    if bounds.device != query.device:
        raise ValueError(f"the mask is on {bounds.device}, query on {query.device}; move it once with mask.to(device)")
    return bounds, causal


# Only for a message: a compiler that sees a length in a string fixes the length.
def _lengths(seqlen_q: int, seqlen_k: int, plan: ContextPlan | None) -> str:
    if plan is not None:
        return f"the plan is for a whole sequence of {plan.seqlen}"
    return f"query has {seqlen_q} rows and key {seqlen_k}"


def check_window(window_size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """(left, right), or None for no window."""
    if window_size is None:
        return None
    window = (window_size, window_size) if isinstance(window_size, int) else tuple(window_size)
    if len(window) != 2 or min(window) < 0:
        raise ValueError(f"window_size must be an int or (left, right), and left and right not negative: {window_size}")
    return window


def check_block_mask(block_mask: Tensor, bounds: Tensor, query: Tensor) -> Tensor:
    """The block mask as bool."""
    num_blocks = [-(-length // BLOCK) for length in (query.shape[1], bounds.shape[2])]
    wanted = [query.shape[0], bounds.shape[1], *num_blocks]
    if list(block_mask.shape) not in (wanted, [1, *wanted[1:]]):
        raise ValueError(
            f"block_mask must have shape {wanted} ([batch, mask heads, blocks of 128 rows, blocks of 128 keys]), "
            f"got {list(block_mask.shape)}"
        )
    if block_mask.is_floating_point() or block_mask.device != query.device:
        raise TypeError(
            f"block_mask must hold ints or bools (1 keeps a block) on {query.device}, "
            f"got {block_mask.dtype} on {block_mask.device}"
        )
    return block_mask if block_mask.dtype == torch.bool else block_mask != 0


def check_sink(sink: Tensor, query: Tensor) -> None:
    """One logit of any float dtype per query head."""
    if sink.shape != query.shape[2:3]:
        raise ValueError(f"learnable_sink must have shape [{query.shape[2]}], got {list(sink.shape)}")
    if not sink.is_floating_point() or sink.device != query.device:
        raise TypeError(
            f"learnable_sink must have a floating-point dtype on {query.device}, got {sink.dtype} on {sink.device}"
        )


def check_dropout(dropout: float, fixed_seed_offset: Tensor | None, training: bool) -> float:
    """The probability that is in force."""
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must be in [0, 1), got {dropout}")
    if fixed_seed_offset is not None and (
        fixed_seed_offset.dtype != torch.int64 or tuple(fixed_seed_offset.shape) != (2,)
    ):
        raise ValueError(
            "fixed_seed_offset must be an int64 tensor [2] of seed and offset (as return_seed_offset returns it), "
            f"got {fixed_seed_offset.dtype} {list(fixed_seed_offset.shape)}"
        )
    return dropout if training else 0.0


def check_plan(bounds: Tensor | None, causal: bool, window: object, block_mask: Tensor | None, dropout: float) -> None:
    """Only what ranks can compute together, and a mask that was not forgotten."""
    if block_mask is not None or dropout:
        raise ValueError(
            "plan takes neither block_mask nor dropout; leave them out (training=False switches dropout off)"
        )
    if bounds is None and not causal and window is None:
        raise ValueError(
            "plan needs the mask of the whole sequence, for example plan.mask; pass ColumnMask.full(plan.seqlen) if "
            "every row sees every key"
        )
