"""How to cover the visible pairs of a column mask with few rectangles that a dense kernel computes.

Rows are cut where the shape of the mask changes. A run of rows with one common span of keys is one rectangle; a run
whose span grows by one key a row is a causal square (a packed document, say). What is left is cut into row tiles, and
the keys of a tile into segments that all rows see, segments that need the mask, and gaps. Planning is linear in Sq + Sk
for document masks, and never looks at all Sq x Sk pairs.

Legend: Sq query rows, Sk key columns; all ranges are half-open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from oarlock import _native
from oarlock.attention.masks import ColumnMask

Range = tuple[int, int]

TILE_ROWS = 192
"""Rows of a tile where the mask has no simple shape: fewer waste kernel speed, more waste hidden pairs."""
MIN_RUN = 16
"""A simple run shorter than this is not worth a kernel call of its own."""
MIN_FULL_KEYS = 512
"""From this width on, skipping the mask in a segment that all rows see pays for a second call and a merge."""
MIN_GAP_KEYS = 64
"""A narrower gap between visible keys is computed and masked instead of skipped."""
BIAS_BYTES = 64 * 2**20
"""Mask values kept per plan; beyond this they are written anew for each use."""


class Kind(Enum):
    FULL = "every row sees every key of the segment"
    CAUSAL = "row i of the tile sees the first i + 1 keys of the segment"
    PARTIAL = "the mask decides"


@dataclass(frozen=True, slots=True)
class Segment:
    """Keys that are computed together for a tile."""

    keys: Range
    kind: Kind
    pattern: tuple | None = None
    """PARTIAL only: segments with equal patterns share one bias."""


@dataclass(frozen=True, slots=True)
class RowTile:
    """Rows with at least one visible key among them, and the segments that hold all their visible keys."""

    rows: Range
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Bias:
    """Additive mask of a PARTIAL segment."""

    values: Tensor
    """[rows, keys], 0 or -inf."""
    blind_rows: Tensor | None
    """bool [rows]: rows that see no key of the segment; None if there are none."""


@dataclass
class TilePlan:
    """The tiles of every mask (batch row and mask head) of a :class:`ColumnMask`."""

    mask: ColumnMask
    tiles: list[list[RowTile]]
    """Per mask, batch-major, or one list if all masks are equal; tiles in order of rows, without rows in common."""
    _biases: dict[tuple, Bias] = field(default_factory=dict, repr=False)
    _bias_bytes: int = 0

    def bias(self, index: int, tile: RowTile, segment: Segment, dtype: torch.dtype) -> Bias:
        """The bias of a PARTIAL segment of mask ``index``."""
        key = (dtype, segment.pattern or (index, tile.rows, segment.keys))
        if key in self._biases:
            return self._biases[key]
        mask = self.mask
        geometry = {"causal": mask.causal, "seqlen_q": mask.seqlen_q}
        values = _native.mask_bias(mask.flat_bounds, index=index, rows=tile.rows, keys=segment.keys, **geometry)
        values = values.to(dtype)
        blind_rows = ~(values == 0).any(dim=1)
        bias = Bias(values, blind_rows if blind_rows.any() else None)
        if self._bias_bytes + values.nbytes <= BIAS_BYTES:
            self._biases[key] = bias
            self._bias_bytes += values.nbytes
        return bias

    def __post_init__(self) -> None:
        mask = self.mask
        self.covers_rows = all(_is_partition([tile.rows for tile in t], mask.seqlen_q) for t in self.tiles)
        """Every row belongs to a tile."""
        self.covers_keys_once = all(
            _is_partition([segment.keys for tile in t for segment in tile.segments], mask.seqlen_k) for t in self.tiles
        )
        """Every key belongs to exactly one segment of its mask."""

        tiles = self.tiles[0] if len(self.tiles) == 1 else []
        segments = tiles[0].segments if len(tiles) == 1 and self.covers_rows else ()
        self.single = segments[0].kind if len(segments) == 1 and self.covers_keys_once else None
        """The kind of the only segment, if there is one that holds everything (plain causal, a decoding step)."""


def _is_partition(ranges: list[Range], size: int) -> bool:
    borders = [0, *(end for _, end in sorted(ranges))]
    return sum(end - begin for begin, end in ranges) == size == borders[-1] and sorted(borders) == borders


def tile_plan(mask: ColumnMask) -> TilePlan:
    """The plan of a mask, made once and kept with the mask."""
    return mask.cached("tile_plan", lambda: _build(mask))


def _build(mask: ColumnMask) -> TilePlan:
    bounds, geometry = mask.flat_bounds, {"causal": mask.causal, "seqlen_q": mask.seqlen_q}
    if len(bounds) > 1 and bool((bounds == bounds[:1]).all()):
        bounds = bounds[:1]
    counts = _native.mask_visible_per_row(bounds, **geometry).numpy()
    first, last = (spans.numpy() for spans in _native.mask_row_spans(bounds, **geometry))
    tiles = [list(_Rows(mask, m, first[m], last[m], counts[m]).tiles()) for m in range(bounds.shape[0])]
    return TilePlan(mask, tiles)


class _Shape(Enum):
    """What a run of consecutive rows looks like."""

    BLIND = 0
    CONSTANT = 1
    STAIRCASE = 2
    OTHER = 3


_BREAK = -1


@dataclass
class _Rows:
    """One mask as its rows see it: row i sees ``count[i]`` keys, all inside [first[i], last[i])."""

    mask: ColumnMask
    index: int
    first: np.ndarray
    last: np.ndarray
    count: np.ndarray

    def __post_init__(self) -> None:
        self.is_span = self.count == self.last - self.first

    def tiles(self) -> Iterator[RowTile]:
        for shape, (begin, end) in self._runs():
            prefix = int(self.last[begin]) - 1 - int(self.first[begin])
            span = (int(self.first[begin]), int(self.last[end - 1]))
            if shape is _Shape.CONSTANT:
                yield RowTile((begin, end), (Segment(span, Kind.FULL),))
            elif shape is _Shape.STAIRCASE and prefix == 0:
                yield RowTile((begin, end), (Segment(span, Kind.CAUSAL),))
            elif shape is _Shape.STAIRCASE and end - begin >= TILE_ROWS:
                corner = span[0] + prefix
                full, square = Segment((span[0], corner), Kind.FULL), Segment((corner, span[1]), Kind.CAUSAL)
                yield RowTile((begin, end), (full, square))
            else:
                for row in range(begin, end, TILE_ROWS):
                    yield self._general_tile((row, min(row + TILE_ROWS, end)))

    def _runs(self) -> list[tuple[_Shape, Range]]:
        """Runs of one shape, in order, without the blind rows; short simple runs count as OTHER."""
        runs: list[tuple[_Shape, Range]] = []
        for shape, (begin, end) in self._simple_runs():
            if shape is _Shape.BLIND:
                continue
            if end - begin < MIN_RUN and (end - begin) < len(self.count):
                shape = _Shape.OTHER
            if runs and shape is _Shape.OTHER and runs[-1][0] is _Shape.OTHER and runs[-1][1][1] == begin:
                begin = runs.pop()[1][0]
            runs.append((shape, (begin, end)))
        return runs

    def _simple_runs(self) -> Iterator[tuple[_Shape, Range]]:
        """Maximal runs of rows with one shape; a row that continues no run is a run of its own."""
        shape_of_row = np.where(self.is_span, _Shape.CONSTANT.value, _Shape.OTHER.value)
        shape_of_row[self.count == 0] = _Shape.BLIND.value
        step = self._steps(shape_of_row)
        changes = np.append(np.flatnonzero(np.diff(step)) + 1, len(step))
        stretch_end = np.repeat(changes, np.diff(changes, prepend=0))
        begin = 0
        while begin < len(shape_of_row):
            shape = int(step[begin]) if begin < len(step) else _BREAK
            if shape == _BREAK:
                shape, end = int(shape_of_row[begin]), begin + 1
            else:
                end = int(stretch_end[begin]) + 1
            yield _Shape(shape), (begin, end)
            begin = end

    def _steps(self, shape_of_row: np.ndarray) -> np.ndarray:
        """The shape of a run that holds both row i and row i + 1, or ``_BREAK``: [Sq - 1]."""
        first_step, last_step = np.diff(self.first), np.diff(self.last)
        step = np.where(shape_of_row[:-1] == shape_of_row[1:], shape_of_row[:-1], _BREAK)
        spans = step == _Shape.CONSTANT.value
        slides = spans & (first_step >= 0) & (first_step <= 1) & (last_step >= 0) & (last_step <= 1)
        step[spans] = _BREAK
        step[slides] = _Shape.OTHER.value
        step[slides & (first_step == 0)] = _Shape.STAIRCASE.value
        step[slides & (first_step == 0) & (last_step == 0)] = _Shape.CONSTANT.value
        return step

    def _general_tile(self, rows: Range) -> RowTile:
        begin, end = rows
        mask = self.mask
        sees = self.count[begin:end] > 0
        keys = (int(self.first[begin:end][sees].min()), int(self.last[begin:end].max()))
        counts = _native.mask_visible_per_key(
            mask.flat_bounds, causal=mask.causal, seqlen_q=mask.seqlen_q, index=self.index, rows=rows, keys=keys
        ).numpy()
        segments = []
        for (key_begin, key_end), kind in cut_segments(counts, end - begin, keys[0]):
            pattern = None
            if kind is Kind.PARTIAL and self.is_span[begin:end].all():
                relative = np.stack([self.first[begin:end], self.last[begin:end]]) - key_begin
                pattern = (key_end - key_begin, relative.tobytes())
            segments.append(Segment((key_begin, key_end), kind, pattern))
        return RowTile(rows, tuple(segments))


def cut_segments(counts: np.ndarray, num_rows: int, first_key: int) -> list[tuple[Range, Kind]]:
    """Cuts the keys of a tile by how many of its rows see them, with short pieces joined to their neighbours."""
    kind_of_key = np.where(counts == num_rows, 2, np.where(counts > 0, 1, 0))
    borders = [0, *(np.flatnonzero(np.diff(kind_of_key)) + 1).tolist(), len(counts)]
    minimum = {0: MIN_GAP_KEYS, 1: 0, 2: MIN_FULL_KEYS if len(borders) > 2 else 0}
    joined: list[tuple[int, int, int]] = []
    for begin, end in pairwise(borders):
        kind = int(kind_of_key[begin])
        if end - begin < minimum[kind]:
            kind = 1
        if joined and kind == joined[-1][2]:
            begin = joined.pop()[0]
        joined.append((begin, end, kind))
    return [
        ((first_key + begin, first_key + end), Kind.FULL if kind == 2 else Kind.PARTIAL)
        for begin, end, kind in joined
        if kind
    ]
