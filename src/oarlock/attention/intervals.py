"""Hidden rows of a column as sorted, disjoint intervals: the form in which masks are combined and compared.

Legend: ... batch and mask heads, Sq query rows, Sk key columns, R intervals per column; intervals are half-open.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EXPLANATION = (
    "a column mask hides at most two intervals of rows per key, or one besides the causal triangle; "
    "pass what is left as block_mask (128 x 128 blocks), or split the attention by heads or batch rows"
)


@dataclass(frozen=True)
class Intervals:
    """Disjoint, sorted, not touching; those from ``count`` on are (Sq, Sq)."""

    begin: Tensor
    """int64 [..., Sk, R]"""
    end: Tensor
    count: Tensor
    """int64 [..., Sk]"""
    seqlen_q: int

    def equal(self, other: Intervals) -> bool:
        """Whether the same rows are hidden everywhere."""
        if self.count.shape != other.count.shape or not torch.equal(self.count, other.count):
            return False
        width = int(self.count.max()) if self.count.numel() else 0
        pairs = ((self.begin, other.begin), (self.end, other.end))
        return all(torch.equal(a[..., :width], b[..., :width]) for a, b in pairs)


def triangle_end(seqlen_q: int, seqlen_k: int, device: torch.device) -> Tensor:
    """The causal triangle hides the rows [0, this) of each column: int64 [Sk]."""
    return (torch.arange(seqlen_k, device=device) - (seqlen_k - seqlen_q)).clamp(0, seqlen_q)


def spelled(bounds: Tensor, causal: bool, seqlen_q: int) -> tuple[Tensor, Tensor]:
    """Begins and ends of all intervals that a mask in FlashMask's format hides, as written: int64 [..., Sk, R]."""
    r = bounds.long().unbind(-1)
    zero, rows = torch.zeros_like(r[0]), torch.full_like(r[0], seqlen_q)
    if causal:
        triangle = triangle_end(seqlen_q, bounds.shape[-2], bounds.device).expand_as(r[0])
        pieces = [(zero, triangle), (r[0], r[1] if len(r) == 2 else rows)]
    elif len(r) == 2:
        pieces = [(zero, r[1]), (r[0], rows)]
    else:
        pieces = [(r[0], r[1]), (r[2], r[3])]
    begins, ends = zip(*pieces, strict=True)
    return torch.stack(begins, -1), torch.stack(ends, -1)


def merge(begin: Tensor, end: Tensor, seqlen_q: int) -> Intervals:
    """Any intervals [..., Sk, R], clamped to the rows, sorted and joined where they overlap or touch."""
    begin, end = begin.clamp(0, seqlen_q), end.clamp(0, seqlen_q)
    is_empty = begin >= end
    begin = begin.masked_fill(is_empty, seqlen_q)
    end = end.masked_fill(is_empty, seqlen_q)
    begin, order = begin.sort(dim=-1, stable=True)
    end = end.gather(-1, order)
    reach = end.cummax(dim=-1).values
    opens = begin < seqlen_q
    opens[..., 1:] &= begin[..., 1:] > reach[..., :-1]
    slot = (opens.cumsum(-1) - 1).clamp(min=0)
    is_empty = begin >= seqlen_q
    merged_begin = torch.full_like(begin, seqlen_q).scatter_reduce(-1, slot, begin, "amin")
    merged_end = torch.full_like(end, -1).scatter_reduce(-1, slot, end.masked_fill(is_empty, -1), "amax")
    return Intervals(merged_begin, merged_end.masked_fill(merged_end < 0, seqlen_q), opens.sum(-1), seqlen_q)


def from_visible(visible: Tensor) -> Intervals:
    """The intervals of a dense mask bool [..., Sq, Sk]."""
    seqlen_q = visible.shape[-2]
    hidden = (~visible).mT.to(torch.int8)  # [..., Sk, Sq]
    edge = torch.zeros_like(hidden[..., :1])
    step = torch.diff(hidden, dim=-1, prepend=edge, append=edge)
    count = (step == 1).sum(-1)
    width = max(1, int(count.max()) if count.numel() else 0)
    shape = (*count.shape, width)
    slots = torch.arange(width, device=visible.device) < count[..., None]
    begin, end = (torch.full(shape, seqlen_q, dtype=torch.int64, device=visible.device) for _ in range(2))
    begin[slots] = (step == 1).nonzero()[:, -1]
    end[slots] = (step == -1).nonzero()[:, -1]
    return Intervals(begin, end, count, seqlen_q)


def fit(hidden: Intervals, what: str) -> tuple[Tensor, bool]:
    """The smallest layout that hides exactly these rows: int32 bounds [..., Sk, n] and whether it is causal.

    Empty intervals are written (Sq, Sq), which keeps them out of the extremes of a block of columns.

    Raises:
        ValueError: no layout holds them; names the first column in the way of each layout.
    """
    rows, count = hidden.seqlen_q, hidden.count
    begin, end = (_at_least(x, 3, rows) for x in (hidden.begin, hidden.end))
    triangle = triangle_end(rows, count.shape[-1], count.device).expand_as(count)
    holds_triangle = (triangle == 0) | ((begin[..., 0] == 0) & (end[..., 0] >= triangle))
    first_is_triangle = (triangle > 0) & (end[..., 0] == triangle)
    beside = torch.where(first_is_triangle, 1, 0)
    piece_begin = begin.gather(-1, beside[..., None])[..., 0]
    piece_begin = torch.maximum(piece_begin, torch.where(count > beside, triangle, 0))
    piece_end = end.gather(-1, beside[..., None])[..., 0]
    causal_2 = holds_triangle & (count - beside <= 1)
    causal_1 = causal_2 & ((count == beside) | (piece_end == rows))

    starts_at_top = (count > 0) & (begin[..., 0] == 0)
    last = (count - 1).clamp(min=0)[..., None]
    ends_at_bottom = (count > 0) & (end.gather(-1, last)[..., 0] == rows)
    upper_end = torch.where(starts_at_top, end[..., 0], 0)
    lower_begin = torch.where(ends_at_bottom, begin.gather(-1, last)[..., 0], rows)
    is_one_run = (count == 1) & starts_at_top & ends_at_bottom
    open_2 = count == starts_at_top.long() + ends_at_bottom.long() - is_one_run.long()
    open_4 = count <= 2
    upper_end_4 = torch.where(count == 2, end[..., 0], rows)
    upper_begin_4 = torch.where(count == 2, begin[..., 0], rows)
    lower = [x.gather(-1, last)[..., 0] for x in (begin, end)]

    layouts = [
        (causal_1, True, [piece_begin]),
        (open_2, False, [lower_begin, upper_end]),
        (causal_2, True, [piece_begin, piece_end]),
        (open_4, False, [*lower, upper_begin_4, upper_end_4]),
    ]
    for fits, causal, columns in layouts:
        if bool(fits.all()):
            return torch.stack(columns, dim=-1).to(torch.int32), causal
    causal_fault = _fault(~causal_2, hidden, "with causal=True")
    open_fault = _fault(~open_4, hidden, "with causal=False")
    raise ValueError(f"{what} does not fit a column mask. {open_fault}; {causal_fault}. {EXPLANATION}")


def _at_least(x: Tensor, width: int, fill: int) -> Tensor:
    missing = width - x.shape[-1]
    return torch.nn.functional.pad(x, (0, missing), value=fill) if missing > 0 else x


def _fault(is_bad: Tensor, hidden: Intervals, layout: str) -> str:
    place = tuple(is_bad.nonzero()[0].tolist())
    runs = zip(hidden.begin[place].tolist(), hidden.end[place].tolist(), strict=True)
    text = ", ".join(f"[{a}, {b})" for a, b in runs if a < b) or "no rows"
    where = f" of batch row {place[0]}, head {place[1]}" if len(place) == 3 and any(place[:2]) else ""
    return f"{layout} column {place[-1]}{where} is the first that fails, it hides {text}"
