"""Which tiles of a mask are visited: exact lists of partial and of full tiles, made on the device.

A tile is a block of rows times a block of keys. Every tile gets its class from exact counts of visible pairs, computed
from the bounds alone: a tile that is hidden by a union of intervals is skipped, one that is fully visible is computed
without the mask. A list has one entry per block, 4 bytes for (say) 128 x 64 pairs; nothing waits for the host.

Legend: B batch, Hm mask heads, P planes (batch rows times mask heads), n bounds per key.
"""

# Triton's language only looks like Python; type checkers know neither its tensors nor calls of kernels.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from oarlock.attention.backends.triton.mask import GENERAL, hidden_rows
from oarlock.attention.block_plan import BLOCK
from oarlock.attention.masks import FULL, PARTIAL, ColumnMask

CHUNK = 32
"""Tiles that a program classifies or sorts at a time."""


@dataclass(frozen=True)
class TileLists:
    """For each line of tiles (one row block or one key block of a plane) the blocks that it visits, and in which order
    the lines are best taken."""

    lists: Tensor
    """int32 [P, lines, blocks]: the partial blocks from the front on, ascending, the full ones from the back."""
    counts: Tensor
    """int32 [P, lines, 2]: numbers of partial and of full blocks."""
    order: Tensor
    """int32 [planes of orders, lines], longest line first."""

    @property
    def num_lines(self) -> int:
        return self.lists.shape[1]

    @property
    def num_blocks(self) -> int:
        return self.lists.shape[2]


def columns(mask: ColumnMask) -> Tensor:
    """The bounds as the kernels read them: int32 [B, Hm, n, Sk], clamped to the rows."""
    return mask.cached("columns", lambda: mask.bounds.clamp(0, mask.seqlen_q).transpose(2, 3).contiguous())


def lists_of_rows(mask: ColumnMask, block_mask: Tensor | None, block_q: int, block_k: int) -> TileLists:
    """For each row block the key blocks that it sees."""
    return _lists(mask, block_mask, block_q, block_k, by_keys=False, group=1)


def lists_of_keys(mask: ColumnMask, block_mask: Tensor | None, block_q: int, block_k: int, group: int) -> TileLists:
    """For each key block the row blocks that see it; the order is by the work of ``group`` masks together."""
    return _lists(mask, block_mask, block_q, block_k, by_keys=True, group=group)


def _lists(
    mask: ColumnMask, block_mask: Tensor | None, block_q: int, block_k: int, *, by_keys: bool, group: int
) -> TileLists:
    def make() -> TileLists:
        classes = _classes(mask, block_q, block_k)
        if block_mask is not None:
            of_rows, of_keys = (
                torch.arange(0, length, block, device=mask.device) // BLOCK
                for length, block in ((mask.seqlen_q, block_q), (mask.seqlen_k, block_k))
            )
            classes = classes * block_mask[:, :, of_rows[:, None], of_keys]
        return _sort(classes.mT if by_keys else classes, group)

    if block_mask is not None:
        return make()  # its owner may write to it
    return mask.cached(("tile_lists", block_q, block_k, by_keys, group), make)


def _classes(mask: ColumnMask, block_q: int, block_k: int) -> Tensor:
    """Exact class of each tile: int8 [B, Hm, row blocks, key blocks]."""
    num_rows, num_keys = -(-mask.seqlen_q // block_q), -(-mask.seqlen_k // block_k)
    shape = (mask.batch, mask.num_heads, num_rows, num_keys)
    classes = torch.empty(shape, dtype=torch.int8, device=mask.device)
    _classify_kernel[(mask.batch * mask.num_heads * num_keys,)](
        columns(mask),
        classes,
        mask.seqlen_q,
        mask.seqlen_k,
        num_rows,
        num_keys,
        CAUSAL=mask.causal,
        NUM_BOUNDS=mask.bounds.shape[3],
        BLOCK_Q=block_q,
        BLOCK_K=block_k,
        CHUNK=CHUNK,
        IS_PARTIAL=PARTIAL,
        IS_FULL=FULL,
    )
    return classes


def _sort(classes: Tensor, group: int) -> TileLists:
    """The lists of classes [B, Hm, lines, blocks] of any strides."""
    batch, heads, num_lines, num_blocks = classes.shape
    lists = torch.empty((batch * heads, num_lines, num_blocks), dtype=torch.int32, device=classes.device)
    counts = torch.empty((batch * heads, num_lines, 2), dtype=torch.int32, device=classes.device)
    _sort_kernel[(batch * heads * num_lines,)](
        classes, lists, counts, heads, num_lines, num_blocks, *classes.stride(), CHUNK, PARTIAL, FULL
    )
    # A partial tile also loads and applies its part of the mask, about a quarter more.
    cost = (5 * counts[..., 0] + 4 * counts[..., 1]).view(-1, group, num_lines).sum(1)
    order = torch.argsort(cost, dim=-1, descending=True, stable=True).to(torch.int32)
    return TileLists(lists, counts, order)


@triton.jit
def _overlap(begin, end, first, last):
    """Length of [begin, end) inside [first, last)."""
    return tl.maximum(tl.minimum(end, last) - tl.maximum(begin, first), 0)


@triton.jit(do_not_specialize=GENERAL)
def _classify_kernel(
    columns_ptr,
    classes_ptr,
    seqlen_q,
    seqlen_k,
    num_rows,
    num_keys,
    CAUSAL: tl.constexpr,
    NUM_BOUNDS: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CHUNK: tl.constexpr,
    IS_PARTIAL: tl.constexpr,
    IS_FULL: tl.constexpr,
):
    """One program per key block: [CHUNK, N] row blocks and keys at a time."""
    plane, block = (tl.program_id(0) // num_keys).to(tl.int64), tl.program_id(0) % num_keys
    keys = block * BLOCK_K + tl.arange(0, BLOCK_K)
    mask_ptr = columns_ptr + plane * NUM_BOUNDS * seqlen_k
    a0, a1, b0, b1 = hidden_rows(mask_ptr, keys, seqlen_q, seqlen_k, CAUSAL, NUM_BOUNDS)
    both0, both1 = tl.maximum(a0, b0)[None, :], tl.minimum(a1, b1)[None, :]
    a0, a1, b0, b1 = a0[None, :], a1[None, :], b0[None, :], b1[None, :]
    for first in range(0, num_rows, CHUNK):
        blocks = first + tl.arange(0, CHUNK)
        begin = blocks * BLOCK_Q
        end = tl.minimum(begin + BLOCK_Q, seqlen_q)
        size = end - begin
        begin, end = begin[:, None], end[:, None]
        hidden = _overlap(a0, a1, begin, end) + _overlap(b0, b1, begin, end) - _overlap(both0, both1, begin, end)
        num_visible = tl.sum(size[:, None] - hidden, 1)
        tile_class = tl.where(num_visible == size * BLOCK_K, IS_FULL, tl.where(num_visible > 0, IS_PARTIAL, 0))
        places = (plane * num_rows + blocks) * num_keys + block
        tl.store(classes_ptr + places, tile_class.to(tl.int8), mask=blocks < num_rows)


@triton.jit(do_not_specialize=GENERAL)
def _sort_kernel(
    classes_ptr,
    lists_ptr,
    counts_ptr,
    num_heads,
    num_lines,
    num_blocks,
    stride_b,
    stride_h,
    stride_line,
    stride_block,
    CHUNK: tl.constexpr,
    IS_PARTIAL: tl.constexpr,
    IS_FULL: tl.constexpr,
):
    """One program per line: partial blocks to the front of its list, full ones to the back."""
    line = tl.program_id(0).to(tl.int64)
    plane = line // num_lines
    line_ptr = classes_ptr + plane // num_heads * stride_b + plane % num_heads * stride_h
    line_ptr += line % num_lines * stride_line
    list_ptr = lists_ptr + line * num_blocks
    num_partial = tl.sum(tl.zeros([CHUNK], tl.int32), 0)
    num_full = num_partial
    for first in range(0, num_blocks, CHUNK):
        blocks = first + tl.arange(0, CHUNK)
        tile_class = tl.load(line_ptr + blocks.to(tl.int64) * stride_block, mask=blocks < num_blocks, other=0)
        is_partial, is_full = (tile_class == IS_PARTIAL).to(tl.int32), (tile_class == IS_FULL).to(tl.int32)
        tl.store(list_ptr + num_partial + tl.cumsum(is_partial, 0) - 1, blocks, mask=is_partial > 0)
        tl.store(list_ptr + num_blocks - num_full - tl.cumsum(is_full, 0), blocks, mask=is_full > 0)
        num_partial += tl.sum(is_partial, 0)
        num_full += tl.sum(is_full, 0)
    tl.store(counts_ptr + 2 * line, num_partial)
    tl.store(counts_ptr + 2 * line + 1, num_full)
