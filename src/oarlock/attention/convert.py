"""Column masks in other libraries' forms: FlexAttention's block masks and cumulative lengths.

Legend: B batch, Hm mask heads, Hq query heads, Tq/Tk blocks of rows and keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from oarlock.attention.masks import ColumnMask


class CuSeqlens(NamedTuple):
    """Packed documents as ``varlen`` kernels take them."""

    cu_seqlens_q: Tensor
    """int32 [documents + 1]; the batch rows are laid end to end."""
    cu_seqlens_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    causal: bool
    """Bottom-right aligned in each document."""


def to_flex_block_mask(mask: ColumnMask, num_heads: int | None, block_size: int) -> Any:
    """See ``ColumnMask.to_flex_block_mask``."""
    from torch.nn.attention.flex_attention import BlockMask

    num_mask_heads = mask.num_heads
    num_heads = num_mask_heads if num_heads is None else num_heads
    if num_heads % num_mask_heads:
        raise ValueError(f"num_heads ({num_heads}) must be a multiple of the mask's {num_mask_heads} heads")
    group = num_heads // num_mask_heads if num_mask_heads > 1 else 1
    visible = mask.visible_per_tile(block_size, block_size)
    # Flex counts a block that reaches beyond the sequence as partial.
    is_full = visible == block_size**2
    is_partial = (visible > 0) & ~is_full
    lists = [x.repeat_interleave(group, dim=1) for x in (*_ordered(is_partial), *_ordered(is_full))]
    bounds, causal, offset = mask.bounds, mask.causal, mask.seqlen_k - mask.seqlen_q
    num_bounds = bounds.shape[3]

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        r = [
            bounds[b if mask.batch > 1 else 0, h // group if num_mask_heads > 1 else 0, kv_idx, n]
            for n in range(num_bounds)
        ]
        if causal:
            hidden = q_idx >= r[0] if num_bounds == 1 else (q_idx >= r[0]) & (q_idx < r[1])
            hidden = hidden | (q_idx < kv_idx - offset)
        elif num_bounds == 2:
            hidden = (q_idx >= r[0]) | (q_idx < r[1])
        else:
            hidden = ((q_idx >= r[0]) & (q_idx < r[1])) | ((q_idx >= r[2]) & (q_idx < r[3]))
        return ~hidden

    lengths = (mask.seqlen_q, mask.seqlen_k)
    return BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=block_size, mask_mod=mask_mod, seq_lengths=lengths)


def _ordered(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Number of chosen key blocks of each row of blocks, and their indices first: int32 [B, H, Tq], [B, H, Tq, Tk]."""
    order = torch.argsort(chosen.to(torch.int8), dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), order.to(torch.int32)


def to_cu_seqlens(mask: ColumnMask) -> CuSeqlens:
    """See ``ColumnMask.to_cu_seqlens``."""
    first_head = type(mask)(mask.bounds[:, :1].contiguous(), mask.causal, mask.seqlen_q)
    hidden = mask.hidden()
    if mask.num_heads > 1 and not all(
        torch.equal(x, x[:, :1].expand_as(x)) for x in (hidden.begin, hidden.end, hidden.count)
    ):
        raise ValueError("not a document mask: its heads differ")
    cu_q, cu_k, kinds = [0], [0], set()
    for batch in range(mask.batch):
        row = type(mask)(first_head.bounds[batch : batch + 1], mask.causal, mask.seqlen_q)
        row_q, row_k, kind = _documents(row, batch)
        cu_q += [cu_q[-1] + x for x in row_q]
        cu_k += [cu_k[-1] + x for x in row_k]
        kinds |= kind
    if not kinds:
        return _cu_seqlens(cu_q, cu_k, True)
    # A row whose documents have one key each (say) is both.
    common = set.intersection(*({True, False} & k for k in kinds))
    if not common:
        raise ValueError("not a document mask: some batch rows are causal, others are not")
    return _cu_seqlens(cu_q, cu_k, max(common))


def _cu_seqlens(cu_q: list[int], cu_k: list[int], causal: bool) -> CuSeqlens:
    q, k = (torch.tensor(x, dtype=torch.int32) for x in (cu_q, cu_k))
    longest = [int(x.diff().max()) if len(x) > 1 else 0 for x in (q, k)]
    return CuSeqlens(q, k, longest[0], longest[1], causal)


def _documents(row: ColumnMask, batch: int) -> tuple[list[int], list[int], set[frozenset[bool]]]:
    """Ends of the documents of one batch row, in rows and in keys, and which values of ``causal`` give the mask."""
    if row.seqlen_q == 0 or row.seqlen_k == 0:
        return [], [], set()
    hidden = row.hidden()
    begin, end, count = (x[0, 0] for x in (hidden.begin, hidden.end, hidden.count))
    # A document ends at the begin of its columns' last hidden interval, if that reaches the last row.
    last = (count - 1).clamp(min=0)[:, None]
    ends_low = (count > 0) & (end.gather(-1, last)[:, 0] == row.seqlen_q)
    document_end = torch.where(ends_low, begin.gather(-1, last)[:, 0], row.seqlen_q)
    if row.causal or bool((document_end.diff() < 0).any()):
        document_end = document_end.cummax(0).values
    cu_q = [0, *document_end.unique_consecutive().tolist()]
    changes = (document_end.diff() != 0).nonzero()[:, 0] + 1
    cu_k = [0, *changes.tolist(), row.seqlen_k]
    if cu_q[-1] != row.seqlen_q:
        raise ValueError(f"not a document mask: the last rows of batch row {batch} see no key")
    make = type(row).from_cu_seqlens
    agreeing = frozenset(causal for causal in (True, False) if make(cu_q, cu_k, causal=causal).equal(row))
    if not agreeing:
        raise ValueError(
            f"not a document mask: the columns of batch row {batch} suggest documents that end at rows {cu_q[1:][:8]} "
            f"and keys {cu_k[1:][:8]}, but their mask, causal or not, is another one"
        )
    return cu_q[1:], cu_k[1:], {agreeing}
