"""Column masks: which query rows each key column hides, in O(Sk) memory.

Legend: B batch, Hm mask heads, Sq query rows, Sk key columns, n bounds per column, Tq/Tk row tiles and key blocks.
Row i and column j are absolute and 0-based; intervals are half-open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from oarlock import _native
from oarlock.attention import convert, picture
from oarlock.attention.intervals import Intervals, fit, from_visible, merge, spelled, triangle_end
from oarlock.attention.mask_documents import DocumentMasks
from oarlock.attention.mask_sequences import SequenceMasks

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
        hint = "; a dense mask becomes one with ColumnMask.from_dense" if got == torch.bool else ""
        raise TypeError(
            f"the bounds of a mask must be an int32 (or int64) tensor of row indices, got {got}{hint}: {_COLUMNS}"
        )
    if bounds.dim() != 4:
        raise ValueError(
            f"the bounds of a mask must have shape [batch, heads, seqlen_k, n], got {list(bounds.shape)}: {_COLUMNS}"
        )
    if bounds.shape[3] not in ((1, 2) if causal else (2, 4)):
        raise ValueError(f"the mask has {bounds.shape[3]} columns with causal={causal}: {_COLUMNS}")


@dataclass(frozen=True, eq=False)
class ColumnMask(SequenceMasks, DocumentMasks):
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

    # ---- constructors (and those of the base classes) ----------------------------------------------------------------

    @classmethod
    def from_dense(cls, visible: Tensor) -> ColumnMask:
        """The mask that is True exactly where ``visible`` is, in the smallest layout that holds it.

        Args:
            visible: bool [Sq, Sk], [Hm, Sq, Sk] or [B, Hm, Sq, Sk].

        Raises:
            ValueError: no layout holds it; names the first column in the way.
        """
        if visible.dtype != torch.bool or visible.dim() not in (2, 3, 4):
            raise ValueError(
                f"visible must be bool [Sq, Sk], [Hm, Sq, Sk] or [B, Hm, Sq, Sk], "
                f"got {visible.dtype} {list(visible.shape)}"
            )
        visible = visible.view(*[1] * (4 - visible.dim()), *visible.shape)
        bounds, causal = fit(from_visible(visible), "the dense mask")
        return cls(bounds, causal, visible.shape[2])

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

    def flops(
        self,
        num_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        batch: int | None = None,
        backward: bool = False,
    ) -> int:
        """Useful floating-point operations of the matrix products, by the exact number of visible pairs.

        Two products forward, 2 (D + Dv) per pair and head; five backward, 2 (3 D + 2 Dv).

        Args:
            num_heads: query heads.
            head_dim, value_dim: D and Dv (default D).
            batch: batch rows; default those of the mask.
            backward: count the backward instead.
        """
        value_dim = head_dim if value_dim is None else value_dim
        pairs = int(self.visible_per_row().sum())
        heads = num_heads * (self.batch if batch is None else batch)
        work = 3 * head_dim + 2 * value_dim if backward else head_dim + value_dim
        return 2 * work * pairs * heads // max(self.batch * self.num_heads, 1)

    # ---- algebra -----------------------------------------------------------------------------------------------------

    def hidden(self) -> Intervals:
        """The hidden rows of each column, causal triangle included, as disjoint sorted intervals."""
        return self.cached("hidden", lambda: merge(*spelled(self.bounds, self.causal, self.seqlen_q), self.seqlen_q))

    def equal(self, other: ColumnMask) -> bool:
        """Whether the same pairs are visible, however the masks are spelled."""
        return self.hidden().equal(other.hidden())

    def __and__(self, other: ColumnMask) -> ColumnMask:
        """Visible where both are; batch rows and heads broadcast from 1.

        Raises:
            ValueError: shapes that differ, or a result with too many intervals (names the first such column).
        """
        if (self.seqlen_q, self.seqlen_k) != (other.seqlen_q, other.seqlen_k):
            raise ValueError(
                f"masks of different size: {self.seqlen_q} rows and {self.seqlen_k} keys, "
                f"{other.seqlen_q} rows and {other.seqlen_k} keys"
            )
        shape = torch.broadcast_shapes(self.bounds.shape[:3], other.bounds.shape[:3])
        pieces = [spelled(mask.bounds, mask.causal, self.seqlen_q) for mask in (self, other)]
        begin, end = (torch.cat([x.expand(*shape, -1) for x in both], dim=-1) for both in zip(*pieces, strict=True))
        bounds, causal = fit(merge(begin, end, self.seqlen_q), "the intersection of the masks")
        return ColumnMask(bounds, causal, self.seqlen_q)

    def pad_to(self, seqlen_q: int, seqlen_k: int | None = None) -> ColumnMask:
        """The mask with rows and keys appended that see nothing and that nobody sees."""
        seqlen_k = seqlen_q if seqlen_k is None else seqlen_k
        more_rows, more_keys = seqlen_q - self.seqlen_q, seqlen_k - self.seqlen_k
        if more_rows < 0 or more_keys < 0:
            raise ValueError(
                f"cannot pad {self.seqlen_q} rows and {self.seqlen_k} keys to {seqlen_q} and {seqlen_k}: fewer"
            )
        begin, end = spelled(self.bounds, self.causal, self.seqlen_q)
        begin, end = (torch.nn.functional.pad(x.clamp(0, self.seqlen_q), (0, 1)) for x in (begin, end))
        begin[..., -1], end[..., -1] = self.seqlen_q, seqlen_q
        begin = torch.nn.functional.pad(begin, (0, 0, 0, more_keys), value=0)
        end = torch.nn.functional.pad(end, (0, 0, 0, more_keys), value=seqlen_q)
        bounds, causal = fit(merge(begin, end, seqlen_q), "the padded mask")
        return ColumnMask(bounds, causal, seqlen_q)

    def localize(self, rows: Tensor) -> ColumnMask:
        """The mask of a subset of the rows, with all keys, as a rank of a context-parallel group holds it.

        A bound x becomes the number of the rows below it, #{r in rows: r < x}, once the causal triangle is written out.

        Args:
            rows: int [R], ascending row numbers.
        """
        if rows.dim() != 1 or bool((rows.diff() <= 0).any()):
            raise ValueError("rows must be one ascending list of row numbers")
        bounds = self.bounds
        if self.causal:
            triangle = triangle_end(self.seqlen_q, self.seqlen_k, self.device).to(torch.int32)
            triangle = triangle.expand(bounds.shape[:3])[..., None]
            zero = torch.zeros_like(triangle)
            parts = [bounds, triangle] if bounds.shape[3] == 1 else [bounds, zero, triangle]
            bounds = torch.cat(parts, dim=-1)
        local = torch.searchsorted(rows.to(torch.int32).contiguous(), bounds.contiguous(), out_int32=True)
        return ColumnMask(local, False, len(rows))

    # ---- other forms -------------------------------------------------------------------------------------------------

    def to_flex_block_mask(self, num_heads: int | None = None, block_size: int = 128) -> Any:
        """The mask for ``torch.nn.attention.flex_attention``, without looking at Sq x Sk pairs.

        Args:
            num_heads: query heads; needed when the mask has several heads but fewer than that.
            block_size: rows and keys of a block.
        """
        return convert.to_flex_block_mask(self, num_heads, block_size)

    def to_cu_seqlens(self) -> convert.CuSeqlens:
        """Cumulative lengths of the packed documents, provided that this is such a mask.

        Raises:
            ValueError: it is not: heads differ, or the mask of the lengths that it suggests is another one.
        """
        return convert.to_cu_seqlens(self)

    def plot(
        self, path: str | Path | None = None, *, batch: int = 0, head: int = 0, title: str = ""
    ) -> picture.Picture:
        """A picture (SVG) for a notebook or ``path``: rows downwards, keys to the right, dark where visible."""
        drawn = picture.draw(self, batch, head, title)
        if path is not None:
            Path(path).write_text(drawn)
        return drawn


def _block_sizes(length: int, block: int, device: torch.device) -> Tensor:
    begins = torch.arange(0, length, block, device=device)
    return (length - begins).clamp(max=block)
