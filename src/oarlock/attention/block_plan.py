"""Tiles of a column mask whose 128 x 128 blocks may be dropped one by one.

Legend: B batch, Hm mask heads, Tq/Tk blocks of rows and of keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from oarlock import _native
from oarlock.attention.masks import ColumnMask
from oarlock.attention.plan import Range, RowTile, Segment, TilePlan, cut_segments

BLOCK = 128
"""Rows and keys that one entry of a block mask stands for."""


def block_plan(mask: ColumnMask, block_mask: Tensor) -> TilePlan:
    """The plan of a mask inside the kept blocks: bool [B or 1, Hm, Tq, Tk], True = keep.

    One tile per row of blocks. The plan of the last block mask is kept with the mask.
    """
    last = mask.cached("block_plan", dict)
    if "plan" not in last or not torch.equal(last["blocks"], block_mask):
        last["blocks"], last["plan"] = block_mask.clone(), _build(mask, block_mask)
    return last["plan"]


def _build(mask: ColumnMask, block_mask: Tensor) -> TilePlan:
    if len(block_mask) > mask.batch:
        mask = ColumnMask(mask.bounds.expand(len(block_mask), -1, -1, -1), mask.causal, mask.seqlen_q)
    blocks = block_mask.expand(mask.batch, -1, -1, -1).flatten(0, 1).numpy()
    return TilePlan(mask, [list(_tiles(mask, index, kept)) for index, kept in enumerate(blocks)])


def _tiles(mask: ColumnMask, index: int, kept: np.ndarray) -> Iterator[RowTile]:
    for block, row in enumerate(range(0, mask.seqlen_q, BLOCK)):
        rows = (row, min(row + BLOCK, mask.seqlen_q))
        segments = [s for keys in _runs(kept[block], mask.seqlen_k) for s in _segments_of(mask, index, rows, keys)]
        if segments:
            yield RowTile(rows, tuple(segments))


def _runs(kept: np.ndarray, seqlen_k: int) -> Iterator[Range]:
    """Ranges of keys of neighbouring kept blocks."""
    borders = [0, *(np.flatnonzero(np.diff(kept)) + 1).tolist(), len(kept)]
    for begin, end in pairwise(borders):
        if end > begin and kept[begin]:
            yield begin * BLOCK, min(end * BLOCK, seqlen_k)


def _segments_of(mask: ColumnMask, index: int, rows: Range, keys: Range) -> Iterator[Segment]:
    counts = _native.mask_visible_per_key(
        mask.flat_bounds, causal=mask.causal, seqlen_q=mask.seqlen_q, index=index, rows=rows, keys=keys
    ).numpy()
    for span, kind in cut_segments(counts, rows[1] - rows[0], keys[0]):
        yield Segment(span, kind)
