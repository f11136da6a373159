"""Which addresses had memory behind them, over time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oarlock.memory.events import Action, BlockState, Recording


class Mapped(NamedTuple):
    """R ranges of addresses that had memory from event `begin` (-1: before the first) until event `end`."""

    addr: NDArray[np.int64]
    size: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]

    def bytes_after(self, num_events: int) -> NDArray[np.int64]:
        """[N] bytes that are mapped after each event."""
        change = np.zeros(num_events + 1, np.int64)
        np.add.at(change, np.maximum(self.begin, 0), self.size)
        np.add.at(change, self.end, -self.size)
        return np.cumsum(change)[:num_events]


def mapped_ranges(recording: Recording) -> Mapped:
    """The ranges, from MAP and UNMAP events and the blocks of the end; empty where the recording tells of neither."""
    events, num_events = recording.events, len(recording)
    rows = np.flatnonzero((events["action"] == Action.MAP) | (events["action"] == Action.UNMAP))
    addr, size = events["addr"][rows].astype(np.int64), events["size"][rows].astype(np.int64)
    maps = events["action"][rows] == Action.MAP
    blocks = recording.blocks
    states = np.where(blocks["detail"] == 1, BlockState.HOLE, blocks["state"])  # of what sleeps
    if not rows.size and not np.isin(states, (BlockState.FREE, BlockState.HOLE)).any():
        return Mapped(*(np.zeros(0, np.int64) for _ in range(4)))
    start, length = joined_ranges(
        blocks["addr"][states != BlockState.HOLE].astype(np.int64),
        blocks["size"][states != BlockState.HOLE].astype(np.int64),
    )
    # Cells between all the places where a range begins or ends: an unmap of a part is a matter of whole cells.
    cuts = np.unique(np.concatenate([addr, addr + size, start, start + length]))
    event, cell, is_map = _cells(rows, addr, size, maps, cuts)
    _, at_end, _ = _cells(np.zeros(start.size, np.int64), start, length, np.ones(start.size, bool), cuts)
    order = np.lexsort((event, cell))
    event, cell, is_map = event[order], cell[order], is_map[order]
    same = np.concatenate([cell[1:] == cell[:-1], [False]]) if cell.size else np.zeros(0, bool)
    until = np.where(same, np.concatenate([event[1:], [0]]) if cell.size else event, num_events)
    first = np.concatenate([[True], ~same[:-1]]) if cell.size else same
    before = first & ~is_map  # an unmap without the map before it
    silent = at_end[~np.isin(at_end, cell)]  # there at the end, and nothing happened to it
    return _runs(
        np.concatenate([cell[is_map], cell[before], silent]),
        np.concatenate([event[is_map], np.full(int(before.sum()) + silent.size, -1)]),
        np.concatenate([until[is_map], event[before], np.full(silent.size, num_events)]),
        cuts,
    )


def _cells(
    event: NDArray[np.int64],
    addr: NDArray[np.int64],
    size: NDArray[np.int64],
    is_map: NDArray[np.bool_],
    cuts: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """One entry per cell of each range: its event, the cell, and whether it is mapped there."""
    first = np.searchsorted(cuts, addr)
    counts = np.searchsorted(cuts, addr + size) - first
    offset = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(event, counts), np.repeat(first, counts) + offset, np.repeat(is_map, counts)


def joined_ranges(addr: NDArray[np.int64], size: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ranges without gaps between them as one."""
    order = np.argsort(addr, kind="stable")
    addr, end = addr[order], (addr + size)[order]
    if addr.size == 0:
        return addr, end
    starts = np.concatenate([[True], addr[1:] > np.maximum.accumulate(end)[:-1]])
    first = np.flatnonzero(starts)
    return addr[first], np.maximum.reduceat(end, first) - addr[first]


def _runs(cell: NDArray[np.int64], begin: NDArray[np.int64], end: NDArray[np.int64], cuts: NDArray[np.int64]) -> Mapped:
    """Neighbouring cells with the same times as one range."""
    order = np.lexsort((cell, end, begin))
    cell, begin, end = cell[order], begin[order], end[order]
    if cell.size == 0:
        return Mapped(cell, cell, begin, end)
    breaks = (cell[1:] != cell[:-1] + 1) | (begin[1:] != begin[:-1]) | (end[1:] != end[:-1])
    first = np.flatnonzero(np.concatenate([[True], breaks]))
    last = np.concatenate([first[1:], [cell.size]]) - 1
    return Mapped(cuts[cell[first]], cuts[cell[last] + 1] - cuts[cell[first]], begin[first], end[first])
