"""The lives of allocations: from events in order of time to one row per allocation."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oarlock.memory.events import Action, BlockState, Mark, Recording


@dataclasses.dataclass(frozen=True)
class Intervals:
    """K allocations, in no particular order; N is the number of events.

    Attributes:
        begin: [K] int64, number of the event that made it; -1: before the first event.
        end: [K] int64, number of the event from which on its memory is anybody's; N: it is there at the end.
        freed: [K] int64, number of the event that asked for the free, at most `end`.
        addr, size: [K] int64, bytes.
        stack, name, tag, stream: [K] int64; the name and tag are the last it was given.
        born_backward, freed_backward: [K] bool, whether that happened in a backward pass.
        num_events: N.
    """

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    freed: NDArray[np.int64]
    addr: NDArray[np.int64]
    size: NDArray[np.int64]
    stack: NDArray[np.int64]
    name: NDArray[np.int64]
    tag: NDArray[np.int64]
    stream: NDArray[np.int64]
    born_backward: NDArray[np.bool_]
    freed_backward: NDArray[np.bool_]
    num_events: int

    def __len__(self) -> int:
        return self.begin.size

    def live_at(self, event: int) -> NDArray[np.int64]:
        """Rows of what takes up memory right after the event."""
        return np.flatnonzero((self.begin <= event) & (event < self.end))

    def live_bytes(self) -> NDArray[np.int64]:
        """[N] bytes that are taken after each event."""
        change = np.zeros(self.num_events + 1, np.int64)
        np.add.at(change, np.maximum(self.begin, 0), self.size)
        np.add.at(change, self.end, -self.size)
        return np.cumsum(change)[: self.num_events]

    def peak(self) -> int:
        """Number of the event after which most is taken; -1 without events."""
        return int(self.live_bytes().argmax()) if self.num_events else -1


_FIELDS = ("addr", "size", "stack", "name", "tag", "stream")


def intervals(recording: Recording) -> Intervals:
    """The allocations that a recording tells of, also those that were made before its first event.

    A free whose allocation is not in the window ends an allocation that began before; a second allocation at an address
    ends the first one, whose free was lost.
    """
    return intervals_of(recording.events, recording.blocks)


def intervals_of(events: NDArray[Any], blocks: NDArray[Any]) -> Intervals:
    """See :func:`intervals`.

    Args:
        events: [N] EVENT.
        blocks: [M] BLOCK, after the last event.
    """
    num_events = events.size
    action = events["action"]
    renames = (action == Action.ANNOTATION) & (events["detail"] == Mark.BLOCK)
    rows = np.flatnonzero((action <= Action.FREE_COMPLETED) | renames)
    rows = rows[np.argsort(events["addr"][rows], kind="stable")]  # by address, then in order
    act, addr = action[rows], events["addr"][rows]
    # A group is an allocation with what follows at its address; the first of an address may lack the allocation.
    starts_address = np.concatenate([[True], addr[1:] != addr[:-1]]) if rows.size else np.zeros(0, bool)
    first = np.flatnonzero(starts_address | (act == Action.ALLOC))
    if first.size == 0:
        return _with_blocks({}, blocks, num_events)

    def earliest(wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.minimum.reduceat(np.where(wanted, rows, num_events), first)

    begins = act[first] == Action.ALLOC
    completed, requested = earliest(act == Action.FREE_COMPLETED), earliest(act == Action.FREE_REQUESTED)
    # The next allocation at the address, if there is one.
    replaced = np.full(first.size, num_events)
    if first.size > 1:
        follows = begins[1:] & ~starts_address[first[1:]]
        replaced[:-1][follows] = rows[first[1:]][follows]
    end = np.minimum(completed, replaced)
    # What is known of it comes from its allocation, else from its free; a name may come later.
    known = rows[first]
    group = np.cumsum(np.bincount(first, minlength=rows.size)) - 1
    naming = np.flatnonzero(act == Action.ANNOTATION)
    named = {field: events[field][known].astype(np.int64) for field in ("name", "tag")}
    for field, values in named.items():
        values[group[naming]] = events[field][rows[naming]]  # of several the last stays
    keep = begins | (np.minimum(completed, requested) < num_events)
    freed = np.minimum(requested, end)
    backward = events["detail"] == 1
    columns = {
        "begin": np.where(begins, known, -1),
        "end": end,
        "freed": freed,
        **{field: named.get(field, events[field][known].astype(np.int64)) for field in _FIELDS},
        "born_backward": begins & backward[known],
        "freed_backward": (freed < num_events) & backward[np.minimum(freed, num_events - 1)],
    }
    return _with_blocks({name: column[keep] for name, column in columns.items()}, blocks, num_events)


def _with_blocks(columns: dict[str, NDArray[Any]], blocks: NDArray[Any], num_events: int) -> Intervals:
    """Adds the blocks of the end that no event tells of."""
    blocks = blocks[np.isin(blocks["state"], (BlockState.LIVE, BlockState.PENDING))]
    told = columns["addr"][columns["end"] == num_events] if columns else np.zeros(0, np.int64)
    blocks = blocks[~np.isin(blocks["addr"].astype(np.int64), told)]
    count = blocks.size
    pending = blocks["state"] == BlockState.PENDING
    more: dict[str, NDArray[Any]] = {
        "begin": np.full(count, -1),
        "end": np.full(count, num_events),
        "freed": np.where(pending, 0, num_events),
        **{field: blocks[field].astype(np.int64) for field in _FIELDS},
        "born_backward": np.zeros(count, bool),
        "freed_backward": np.zeros(count, bool),
    }
    joined = {name: np.concatenate([columns[name], more[name]]) if columns else more[name] for name in more}
    return Intervals(**joined, num_events=num_events)
