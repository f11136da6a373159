"""A part of a recording, by time."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from oarlock.memory.events import BLOCK, BlockState, Recording
from oarlock.memory.intervals import Intervals, intervals
from oarlock.memory.mapped import Mapped, joined_ranges, mapped_ranges


def window(recording: Recording, start: float = 0.0, stop: float = math.inf) -> Recording:
    """The events of [start, stop) with the blocks after the last of them.

    Args:
        recording: the whole.
        start, stop: seconds from its first event.

    Raises:
        ValueError: no event lies there.
    """
    if not 0 <= start < stop:
        raise ValueError(f"a window must begin at 0 s or later and end after that, got {start:g} to {stop:g} s")
    times = recording.events["t_ns"] - (recording.events["t_ns"][0] if len(recording) else 0)
    first = int(np.searchsorted(times, round(start * 1e9)))
    last = len(recording) if math.isinf(stop) else int(np.searchsorted(times, round(stop * 1e9)))
    if first >= last:
        length = times[-1] / 1e9 if len(recording) else 0.0
        raise ValueError(f"no event lies between {start:g} and {stop:g} s; the recording is {length:g} s long")
    blocks = recording.blocks
    if last < len(recording):
        blocks = _blocks_after(intervals(recording), mapped_ranges(recording), last - 1)
    dropped = recording.num_dropped + first
    return dataclasses.replace(recording, events=recording.events[first:last], blocks=blocks, num_dropped=dropped)


def _blocks_after(lives: Intervals, mapped: Mapped, event: int) -> np.ndarray:
    """What is taken after an event, and what is free between that."""
    rows = lives.live_at(event)
    taken = np.zeros(rows.size, BLOCK)
    for name in ("addr", "size", "stack", "name", "tag", "stream"):
        taken[name] = getattr(lives, name)[rows]
    taken["requested"] = taken["size"]
    taken["state"] = np.where(lives.freed[rows] <= event, BlockState.PENDING, BlockState.LIVE)
    there = np.flatnonzero((mapped.begin <= event) & (event < mapped.end))
    start, length = joined_ranges(mapped.addr[there], mapped.size[there])
    used, used_length = joined_ranges(lives.addr[rows], lives.size[rows])
    edges = np.concatenate([start, start + length, used, used + used_length])
    step = np.repeat([1, -1, -1, 1], [start.size, start.size, used.size, used.size])
    order = np.argsort(edges, kind="stable")
    edges, depth = edges[order], np.cumsum(step[order])
    gaps = np.flatnonzero((depth[:-1] == 1) & (np.diff(edges) > 0)) if edges.size else np.zeros(0, np.int64)
    free = np.zeros(gaps.size, BLOCK)
    free["addr"], free["size"], free["state"] = edges[gaps], np.diff(edges)[gaps], BlockState.FREE
    blocks = np.concatenate([taken, free])
    return blocks[np.argsort(blocks["addr"], kind="stable")]
