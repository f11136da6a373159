"""Which addresses had memory behind them, over time."""

from __future__ import annotations

import math
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
    # All in units that divide every range, so that an unmap of a part is a matter of whole units.
    unit = recording.page_bytes or math.gcd(*(int(v) for v in np.unique(np.concatenate([addr, size, start, length]))))
    unit = max(unit, 512)
    event, page = _pages(rows, addr, size, unit)
    is_map = np.repeat(maps, -(-size // unit))
    _, at_end = _pages(np.zeros(start.size, np.int64), start // unit * unit, length + start % unit, unit)
    at_end = np.unique(at_end)
    order = np.lexsort((event, page))
    event, page, is_map = event[order], page[order], is_map[order]
    same = np.concatenate([page[1:] == page[:-1], [False]]) if page.size else np.zeros(0, bool)
    next_event = np.concatenate([event[1:], [0]]) if page.size else event
    begins = [event[is_map]]
    ends = [np.where(same, next_event, num_events)[is_map]]
    pages = [page[is_map]]
    # An unmap without the map before it; what is there at the end and has no event.
    first = np.concatenate([[True], ~same[:-1]]) if page.size else same
    before = first & ~is_map
    begins.append(np.full(int(before.sum()), -1))
    ends.append(event[before])
    pages.append(page[before])
    silent = at_end[~np.isin(at_end, page)]
    begins.append(np.full(silent.size, -1))
    ends.append(np.full(silent.size, num_events))
    pages.append(silent)
    return _runs(np.concatenate(pages), np.concatenate(begins), np.concatenate(ends), unit)


def _pages(
    event: NDArray[np.int64], addr: NDArray[np.int64], size: NDArray[np.int64], unit: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One entry per unit of each range: its event, its number of unit."""
    counts = -(-size // unit)
    offset = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(event, counts), np.repeat(addr // unit, counts) + offset


def joined_ranges(addr: NDArray[np.int64], size: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ranges without gaps between them as one."""
    order = np.argsort(addr, kind="stable")
    addr, end = addr[order], (addr + size)[order]
    if addr.size == 0:
        return addr, end
    starts = np.concatenate([[True], addr[1:] > np.maximum.accumulate(end)[:-1]])
    first = np.flatnonzero(starts)
    return addr[first], np.maximum.reduceat(end, first) - addr[first]


def _runs(page: NDArray[np.int64], begin: NDArray[np.int64], end: NDArray[np.int64], unit: int) -> Mapped:
    """Neighbouring units with the same times as one range."""
    order = np.lexsort((page, end, begin))
    page, begin, end = page[order], begin[order], end[order]
    if page.size == 0:
        return Mapped(page, page, begin, end)
    breaks = (page[1:] != page[:-1] + 1) | (begin[1:] != begin[:-1]) | (end[1:] != end[:-1])
    first = np.flatnonzero(np.concatenate([[True], breaks]))
    count = np.diff(np.concatenate([first, [page.size]]))
    return Mapped(page[first] * unit, count * unit, begin[first], end[first])
