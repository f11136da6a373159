"""Column masks: which query rows each key column hides, in O(Sk) memory.

Legend: B batch, Hm mask heads, Sq query rows, Sk key columns, n bounds per column, Tq/Tk row tiles and key blocks.
Row i and column j are absolute and 0-based; intervals are half-open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from oarlock import _native

T = TypeVar("T")

SKIP, PARTIAL, FULL = 0, 1, 2
"""Classes of a tile: no visible pair, some, all."""

_COLUMNS = (
    "per key, causal=True takes 1 (LTS: rows i >= LTS are hidden) or 2 columns (LTS <= i < LTE are hidden), "
    "causal=False takes 2 (i >= LTS and i < UTE are hidden) or 4 (LTS <= i < LTE and UTS <= i < UTE are hidden); "
    "note that the second column is LTE with causal and UTE without"
)


def check_bounds(bounds: Tensor, causal: bool) -> None:
    """Raises unless the tensor is int32 or int64 [batch, heads, seqlen_k, n] with an n that fits ``causal``."""
    if not isinstance(bounds, Tensor) or bounds.dtype not in (torch.int32, torch.int64):
        got = bounds.dtype if isinstance(bounds, Tensor) else type(bounds).__name__
        raise TypeError(f"the bounds of a mask must be an int32 (or int64) tensor of row indices, got {got}")
    if bounds.dim() != 4:
        raise ValueError(
            f"the bounds of a mask must have shape [batch, heads, seqlen_k, n], got {list(bounds.shape)}: {_COLUMNS}"
        )
    if bounds.shape[3] not in ((1, 2) if causal else (2, 4)):
        raise ValueError(f"the mask has {bounds.shape[3]} columns with causal={causal}: {_COLUMNS}")


@dataclass(frozen=True, eq=False)
class ColumnMask:
    """A mask in FlashMask's format: up to two hidden row intervals per key column, plus the causal triangle.

    With r0..r3 = ``bounds[b, h, j]`` the rows that do not see key j are

    ======  =  ===========================================================
    causal  n  hidden rows of column j
    ======  =  ===========================================================
    True    1  i >= r0, and i < j - (Sk - Sq)
    True    2  r0 <= i < r1, and i < j - (Sk - Sq)
    False   2  i >= r0, and i < r1
    False   4  r0 <= i < r1, and r2 <= i < r3
    ======  =  ===========================================================

    The causal triangle is aligned to the bottom right. Intervals may be empty, reversed (empty), overlapping, in any
    order, or reach beyond the rows. The mask must not be changed after it was made: plans are cached on it.

    Args:
        bounds: int32 [B, Hm, Sk, n] (int64 is converted).
        causal: whether the causal triangle is hidden too.
        seqlen_q: number of query rows Sq.

    Raises:
        TypeError: ``bounds`` is not an integer tensor.
        ValueError: wrong rank, or an n that does not fit ``causal``.

    Source: Wang et al., FlashMask: Efficient and Rich Mask Extension of FlashAttention, arXiv 2410.01359.
    """

    bounds: Tensor
    causal: bool
    seqlen_q: int
    _memo: dict[Any, Any] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        bounds = self.bounds
        check_bounds(bounds, self.causal)
        if self.seqlen_q < 0:
            raise ValueError(f"seqlen_q must not be negative, got {self.seqlen_q}")
        if bounds.dtype == torch.int64:
            limits = torch.iinfo(torch.int32)
            object.__setattr__(self, "bounds", bounds.clamp(limits.min, limits.max).to(torch.int32))

    def __reduce__(self) -> tuple[Any, ...]:
        return ColumnMask, (self.bounds, self.causal, self.seqlen_q)

    # ---- constructors ------------------------------------------------------------------------------------------------

    @classmethod
    def full(
        cls, seqlen_q: int, seqlen_k: int | None = None, *, batch: int = 1, device: torch.device | str | None = None
    ) -> ColumnMask:
        """Every row sees every key."""
        bounds_2 = torch.tensor([seqlen_q, 0], dtype=torch.int32, device=device)
        seqlen_k = seqlen_q if seqlen_k is None else seqlen_k
        return cls(bounds_2.expand(batch, 1, seqlen_k, 2).contiguous(), False, seqlen_q)

    @classmethod
    def plain_causal(
        cls, seqlen_q: int, seqlen_k: int | None = None, *, batch: int = 1, device: torch.device | str | None = None
    ) -> ColumnMask:
        """Row i sees the keys j <= i + Sk - Sq: the last row sees all of them."""
        shape = (batch, 1, seqlen_q if seqlen_k is None else seqlen_k, 1)
        return cls(torch.full(shape, seqlen_q, dtype=torch.int32, device=device), True, seqlen_q)

    @classmethod
    def sliding_window(
        cls,
        seqlen_q: int,
        seqlen_k: int | None = None,
        *,
        left: int,
        right: int = 0,
        batch: int = 1,
        device: torch.device | str | None = None,
    ) -> ColumnMask:
        """Row i sees the keys p - left <= j <= p + right around its own position p = i + Sk - Sq."""
        if left < 0 or right < 0:
            raise ValueError(f"left and right must not be negative, got {left} and {right}")
        seqlen_k = seqlen_q if seqlen_k is None else seqlen_k
        row_K = torch.arange(seqlen_k, dtype=torch.int64, device=device) - (seqlen_k - seqlen_q)
        columns = [(row_K + left + 1).clamp(0, seqlen_q)]
        if right > 0:
            columns.append((row_K - right).clamp(0, seqlen_q))
        bounds = torch.stack(columns, dim=-1).expand(batch, 1, -1, -1).contiguous()
        return cls(bounds, right == 0, seqlen_q)

    @classmethod
    def causal_document(
        cls,
        lengths: Sequence[int] | Sequence[Sequence[int]],
        *,
        window: int | None = None,
        device: torch.device | str | None = None,
    ) -> ColumnMask:
        """Packed documents, causal inside each: row i sees the keys j <= i of its own document.

        Args:
            lengths: lengths of the documents in order, for all batch rows or one list per batch row; each list sums
                to the sequence length.
            window: if given, a row sees only the last ``window`` of these keys, itself included (i - j < window).
            device: where the bounds live.

        Raises:
            ValueError: negative lengths, rows of different total length, or a window below 1.
        """
        _, end_BS = _document_borders(lengths)
        if window is not None:
            if window < 1:
                raise ValueError(f"window must be at least 1 (the row's own key), got {window}")
            end_BS = torch.minimum(end_BS, torch.arange(end_BS.shape[1]) + window)
        return cls(end_BS[:, None, :, None].to(device), True, end_BS.shape[1])

    @classmethod
    def document(
        cls, lengths: Sequence[int] | Sequence[Sequence[int]], *, device: torch.device | str | None = None
    ) -> ColumnMask:
        """Packed documents, bidirectional inside each; ``lengths`` as in :meth:`causal_document`."""
        begin_BS, end_BS = _document_borders(lengths)
        return cls(torch.stack([end_BS, begin_BS], dim=-1)[:, None].to(device), False, end_BS.shape[1])

    # ---- views -------------------------------------------------------------------------------------------------------

    @property
    def batch(self) -> int:
        return self.bounds.shape[0]

    @property
    def num_heads(self) -> int:
        return self.bounds.shape[1]

    @property
    def seqlen_k(self) -> int:
        return self.bounds.shape[2]

    @property
    def device(self) -> torch.device:
        return self.bounds.device

    def to(self, device: torch.device | str) -> ColumnMask:
        """The same mask on another device; ``self`` if it is there already."""
        bounds = self.bounds.to(device)
        return self if bounds is self.bounds else ColumnMask(bounds, self.causal, self.seqlen_q)

    def cached(self, key: Any, make: Callable[[], T]) -> T:
        """``make()``, computed once per ``key`` and kept as long as the mask lives."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    @property
    def flat_bounds(self) -> Tensor:
        """The bounds as the C++ core reads them: int32 [B * Hm, Sk, n], contiguous, on the CPU."""
        return self.cached("flat_bounds", lambda: self.bounds.flatten(0, 1).cpu().contiguous())

    def to_dense(self) -> Tensor:
        """The mask written out: bool [B, Hm, Sq, Sk], True where row i sees key j. O(Sq * Sk) memory."""
        row_Q1 = torch.arange(self.seqlen_q, device=self.device)[:, None]
        r = [bound[:, :, None, :] for bound in self.bounds.unbind(-1)]
        if self.causal:
            key_K = torch.arange(self.seqlen_k, device=self.device)
            hidden = (row_Q1 >= r[0]) & (row_Q1 < r[1]) if len(r) == 2 else row_Q1 >= r[0]
            hidden = hidden | (row_Q1 < key_K - (self.seqlen_k - self.seqlen_q))
        elif len(r) == 2:
            hidden = (row_Q1 >= r[0]) | (row_Q1 < r[1])
        else:
            hidden = ((row_Q1 >= r[0]) & (row_Q1 < r[1])) | ((row_Q1 >= r[2]) & (row_Q1 < r[3]))
        return ~hidden

    # ---- exact counts, without writing the mask out ------------------------------------------------------------------

    def visible_per_row(self) -> Tensor:
        """Number of keys that each row sees: int64 [B, Hm, Sq], in O(Sq + Sk) per mask."""
        counts = _native.mask_visible_per_row(self.flat_bounds, causal=self.causal, seqlen_q=self.seqlen_q)
        return counts.view(self.batch, self.num_heads, self.seqlen_q).to(self.device)

    def visible_per_tile(self, block_q: int, block_k: int) -> Tensor:
        """Number of visible pairs in each tile: int64 [B, Hm, Tq, Tk], in O(Sk + Tq * Tk) per mask."""
        counts = _native.mask_visible_per_tile(
            self.flat_bounds, causal=self.causal, seqlen_q=self.seqlen_q, block_q=block_q, block_k=block_k
        )
        return counts.view(self.batch, self.num_heads, *counts.shape[1:]).to(self.device)

    def tile_classes(self, block_q: int, block_k: int) -> Tensor:
        """Exact class of each tile (``SKIP``, ``PARTIAL`` or ``FULL``): int8 [B, Hm, Tq, Tk]."""
        counts = self.visible_per_tile(block_q, block_k)
        rows_T = _block_sizes(self.seqlen_q, block_q, counts.device)
        keys_T = _block_sizes(self.seqlen_k, block_k, counts.device)
        is_full = counts == rows_T[:, None] * keys_T
        return (counts > 0).to(torch.int8) + is_full.to(torch.int8)

    @property
    def density(self) -> float:
        """Share of visible pairs among all B * Hm * Sq * Sk."""
        pairs = self.batch * self.num_heads * self.seqlen_q * self.seqlen_k
        return self.cached("density", lambda: int(self.visible_per_row().sum()) / pairs if pairs else 0.0)


def _block_sizes(length: int, block: int, device: torch.device) -> Tensor:
    begins = torch.arange(0, length, block, device=device)
    return (length - begins).clamp(max=block)


def _document_borders(lengths: Sequence[int] | Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """First row and end row of each key's document: two int64 [B, S]."""
    rows: list[list[int]] = [list(row) for row in lengths if isinstance(row, Sequence)]
    if len(rows) != len(lengths):
        rows = [[int(length) for length in lengths]]  # type: ignore[arg-type]
    totals = [sum(row) for row in rows]
    if any(length < 0 for row in rows for length in row):
        raise ValueError(f"lengths must not be negative, got {lengths}")
    if len(set(totals)) > 1:
        raise ValueError(f"the lengths of every batch row must have the same sum, got {totals}")
    begins, ends = [], []
    for row in rows:
        length_N = torch.tensor(row, dtype=torch.int64)
        end_N = length_N.cumsum(0)
        ends.append(end_N.repeat_interleave(length_N))
        begins.append((end_N - length_N).repeat_interleave(length_N))
    return torch.stack(begins), torch.stack(ends)
