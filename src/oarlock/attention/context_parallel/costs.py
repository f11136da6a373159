"""What the chunks of a sequence cost, and which keys the rows of a chunk or of a rank see: exact, without S x S work.

A chunk is a run of neighbouring rows that one rank holds together. All counts come from the visible intervals of the
columns (at most three per key), never from pairs.

Legend: G batch rows of the mask, Hm mask heads, S sequence, C chunks, R ranks, N runs of keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oarlock.attention.masks import ColumnMask


def num_chunks(seqlen: int, chunk: int) -> int:
    """Chunks of a sequence; the last one may be short."""
    return -(-seqlen // chunk)


def chunk_sizes(seqlen: int, chunk: int) -> np.ndarray:
    """Rows of each chunk: int64 [C]."""
    begins = np.arange(0, seqlen, chunk)
    return np.minimum(seqlen - begins, chunk)


def chunk_costs(mask: ColumnMask, chunk: int) -> np.ndarray:
    """Visible pairs of the rows of each chunk, over all batch rows and heads of the mask: int64 [C]."""
    per_row_S = mask.visible_per_row().sum((0, 1)).cpu().numpy()
    if len(per_row_S) == 0:
        return np.zeros(0, np.int64)
    return np.add.reduceat(per_row_S, np.arange(0, len(per_row_S), chunk))


def chunk_needs(mask: ColumnMask, chunk: int) -> np.ndarray:
    """Whether some row of one chunk (first dim) sees some key of another: bool [C, C]."""
    return (mask.visible_per_tile(chunk, chunk) > 0).any(0).any(0).cpu().numpy()


@dataclass(frozen=True)
class KeyRuns:
    """Neighbouring keys that are seen from the same chunks of rows; the runs of a batch row partition its keys."""

    batch: np.ndarray
    """int64 [N], batch row of the mask."""
    begin: np.ndarray
    end: np.ndarray
    """int64 [N]; a run lies within one chunk."""
    first: np.ndarray
    last: np.ndarray
    """int64 [N, 3 Hm]: the rows that see the keys lie in the chunks first to last (inclusive), and in each of these
    there is such a row; last < first for none."""

    @property
    def sizes(self) -> np.ndarray:
        return self.end - self.begin

    def needed(self, owner_C: np.ndarray, num_ranks: int) -> np.ndarray:
        """Whether a rank has a row that sees the keys of a run: bool [R, N]."""
        following = _next_chunk(owner_C, num_ranks)
        needed = np.zeros((num_ranks, len(self.begin)), bool)
        for first_N, last_N in zip(self.first.T, self.last.T, strict=True):
            needed |= following[:, first_N] <= last_N
        return needed


def key_runs(mask: ColumnMask, chunk: int) -> KeyRuns:
    """The runs of all keys of a mask."""
    seqlen, batch = mask.seqlen_k, mask.batch
    hidden = mask.hidden()
    begin, end = (x.movedim(1, 2).cpu().numpy() for x in (hidden.begin, hidden.end))  # [G, S, Hm, hidden intervals]
    edge = np.zeros((*begin.shape[:3], 1), np.int64)
    shape = (batch * seqlen, mask.num_heads * (begin.shape[3] + 1))
    visible_begin = np.concatenate([edge, end], -1).reshape(shape)
    visible_end = np.concatenate([begin, edge + mask.seqlen_q], -1).reshape(shape)
    first, last = visible_begin // chunk, (visible_end - 1) // chunk
    is_empty = visible_begin >= visible_end
    first[is_empty], last[is_empty] = 0, -1

    place = np.arange(batch * seqlen) % seqlen if seqlen else np.zeros(0, np.int64)
    starts = place % chunk == 0
    starts[1:] |= (first[1:] != first[:-1]).any(1) | (last[1:] != last[:-1]).any(1)
    at = np.flatnonzero(starts)
    ends = np.append(at[1:], batch * seqlen)
    return KeyRuns(at // max(seqlen, 1), place[at], place[at] + ends - at, first[at], last[at])


def _next_chunk(owner_C: np.ndarray, num_ranks: int) -> np.ndarray:
    """The first chunk of a rank that is not before a given one, C if there is none: int64 [R, C]."""
    count = len(owner_C)
    index_C = np.arange(count)
    own = np.where(owner_C == np.arange(num_ranks)[:, None], index_C, count)
    return np.minimum.accumulate(own[:, ::-1], axis=1)[:, ::-1]
