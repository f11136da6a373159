"""Garbage behind a mask: NaN and infinity at hidden positions must not reach anything.

A kernel that computes a hidden pair and masks it afterwards multiplies by 0, and 0 * NaN is NaN. Backends of that kind
look at their results, and where these hold a NaN compute again with what this module returns.

Legend: B batch, Sq query rows, Sk keys, Hq/Hk query and key heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from oarlock.attention import intervals
from oarlock.attention.masks import ColumnMask

Gradients = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Cleaned:
    """Inputs whose non-finite vectors are replaced by zeros."""

    query: Tensor
    key: Tensor
    value: Tensor
    poisoned: Tensor
    """bool [B, Sq, Hq]: rows that see such a key or value, or are such a query and see a key; their results are NaN."""
    blind: Tensor
    """bool [B, Sq, Hq]: rows that see nothing."""


def has_nan(*tensors: Tensor) -> bool:
    """Whether one of them holds a NaN (or infinities of both signs)."""
    return any(bool(x.sum().isnan()) for x in tensors)


def all_finite(*tensors: Tensor) -> bool:
    """Whether none of them holds a NaN or an infinity (or sums to one)."""
    return all(bool(x.sum(dtype=torch.promote_types(x.dtype, torch.float32)).isfinite()) for x in tensors)


def clean(query: Tensor, key: Tensor, value: Tensor, mask: ColumnMask, block_mask: Tensor | None) -> Cleaned:
    """Zeros in place of all vectors with a NaN or an infinity, and the rows that must not hide them."""
    bad_query = ~query.isfinite().all(dim=-1)
    bad_key = ~(key.isfinite().all(dim=-1) & value.isfinite().all(dim=-1))
    visible = _counts(mask, query.shape, None, block_mask)
    sees_bad = _counts(mask, query.shape, bad_key, block_mask) > 0
    blind = visible == 0
    return Cleaned(
        query.masked_fill(bad_query[..., None], 0),
        key.masked_fill(bad_key[..., None], 0),
        value.masked_fill(bad_key[..., None], 0),
        poisoned=sees_bad | (bad_query & ~blind),
        blind=blind,
    )


def gradients_of_finite(
    backward: Callable[[Tensor, Tensor | None, Tensor, Tensor, Tensor, Tensor, Tensor], Gradients],
    grad_out: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: ColumnMask,
    block_mask: Tensor | None,
) -> Gradients:
    """dq, dk, dv by ``backward`` of the finite rows alone; NaN in all rows that are not, and in all keys these see.

    ``backward`` takes the arguments up to ``lse``. A row is not finite if its query, out, lse, grad_out or grad_lse is
    not, or if it sees such a key or value; a row that sees nothing always is.
    """
    cleaned = clean(query, key, value, mask, block_mask)
    bad_lse = lse.isnan() | (lse == float("inf"))
    if grad_lse is not None:
        bad_lse = bad_lse | ~grad_lse.isfinite()
    bad = cleaned.poisoned | ~(grad_out.isfinite() & out.isfinite()).all(dim=-1) | bad_lse.transpose(1, 2)
    bad = bad & ~cleaned.blind
    left_out, bad_lse = bad | cleaned.blind, bad.transpose(1, 2)
    dq, dk, dv = backward(
        grad_out.masked_fill(left_out[..., None], 0),
        None if grad_lse is None else grad_lse.masked_fill(left_out.transpose(1, 2), 0),
        cleaned.query.masked_fill(bad[..., None], 0),
        *(cleaned.key, cleaned.value, out.masked_fill(bad[..., None], 0), lse.masked_fill(bad_lse, 0)),
    )
    seen = _keys_seen_by(bad, key.shape[2], mask, block_mask)[..., None]
    nan = float("nan")
    return dq.masked_fill(bad[..., None], nan), dk.masked_fill(seen, nan), dv.masked_fill(seen, nan)


def _keys_seen_by(rows_BQH: Tensor, num_key_heads: int, mask: ColumnMask, block_mask: Tensor | None) -> Tensor:
    """bool [B, Sk, Hk]: keys that one of the marked rows sees."""
    batch, seqlen_q, num_heads = rows_BQH.shape
    group = num_heads // mask.num_heads
    rows_BHQ = rows_BQH.transpose(1, 2)
    if block_mask is not None:
        visible = dense(mask, block_mask).repeat_interleave(group, dim=1)
        seen_BHK = (visible & rows_BHQ[..., None]).any(dim=2)
    else:
        begin, end = intervals.spelled(mask.bounds, mask.causal, seqlen_q)
        hidden = intervals.merge(begin, end, seqlen_q)
        up_to = torch.nn.functional.pad(rows_BHQ.long().cumsum(-1), (1, 0))
        begin, end = (
            up_to.gather(-1, x.repeat_interleave(group, dim=1).flatten(2).expand(batch, -1, -1))
            for x in (hidden.begin, hidden.end)
        )
        num_hidden = (end - begin).unflatten(-1, (mask.seqlen_k, -1)).sum(-1)
        seen_BHK = num_hidden < up_to[..., -1:]
    return seen_BHK.unflatten(1, (num_key_heads, -1)).any(dim=2).transpose(1, 2)


def _counts(mask: ColumnMask, shape: torch.Size, only_BKH: Tensor | None, block_mask: Tensor | None) -> Tensor:
    """Number of (the marked) keys that each row sees: [B, Sq, Hq]."""
    batch, seqlen_q, num_heads, _ = shape
    if block_mask is not None:
        visible = dense(mask, block_mask).repeat_interleave(num_heads // mask.num_heads, dim=1)
        if only_BKH is not None:
            only = only_BKH.transpose(1, 2).repeat_interleave(num_heads // only_BKH.shape[2], dim=1)
            visible = visible & only[:, :, None]
        return visible.sum(-1).transpose(1, 2).expand(batch, seqlen_q, num_heads)
    bounds = mask.bounds.expand(batch, -1, -1, -1).repeat_interleave(num_heads // mask.num_heads, dim=1)
    if only_BKH is not None:
        only = only_BKH.transpose(1, 2).repeat_interleave(num_heads // only_BKH.shape[2], dim=1)
        everything = bounds.new_tensor([0, seqlen_q, 0, 0] if bounds.shape[3] == 4 else [0, seqlen_q])
        bounds = torch.where(only[..., None], bounds, everything[: bounds.shape[3]])
    return ColumnMask(bounds, mask.causal, seqlen_q).visible_per_row().transpose(1, 2)


def dense(mask: ColumnMask, block_mask: Tensor | None) -> Tensor:
    """bool [B or 1, Hm, Sq, Sk], the intersection with the blocks of 128 x 128 that are kept."""
    visible = mask.to_dense()
    if block_mask is None:
        return visible
    pairs = block_mask.repeat_interleave(128, dim=2).repeat_interleave(128, dim=3)
    return visible & pairs[:, :, : mask.seqlen_q, : mask.seqlen_k]
