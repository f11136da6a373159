"""What a page draws of a recording: few rectangles for many allocations, addresses without the gaps between them."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from oarlock.memory.events import Recording
from oarlock.memory.intervals import Intervals, intervals
from oarlock.memory.mapped import Mapped, joined_ranges, mapped_ranges

MOST_RECTANGLES = 20_000
_MOST_OWN, _MOST_MAPPED = 12_000, 2_000
_NUM_COLUMNS, _NUM_ROWS = 120, 50  # of the grid for what gets no rectangle of its own


@dataclasses.dataclass(frozen=True)
class Axis:
    """Addresses without the ranges that nothing ever lay in; range r begins at `addr[r]` and at `offset[r]`."""

    addr: NDArray[np.int64]
    size: NDArray[np.int64]
    offset: NDArray[np.int64]

    @property
    def total(self) -> int:
        """Bytes of all ranges."""
        return int(self.size.sum())

    def place(self, addr: NDArray[np.int64]) -> NDArray[np.int64]:
        """Offsets of addresses that lie in a range."""
        row = np.searchsorted(self.addr, addr, side="right") - 1
        return self.offset[row] + addr - self.addr[row]


@dataclasses.dataclass(frozen=True)
class Picture:
    """The parts of a page's map.

    Attributes:
        lives: all allocations; mapped: where memory was.
        kinds: names of the kinds of memory, the kind with most bytes at the peak first.
        kind: [K] row of `kinds` for each allocation.
        axis: of addresses.
        own: rows of `lives` that get a rectangle each, the largest last to be dropped.
        cells: [C, 3] column, row and share (0 to 255) of the grid that shows the others.
        columns: [_NUM_COLUMNS + 1] numbers of events where the grid's columns begin and end.
        shown_mapped: rows of `mapped` that are drawn.
    """

    lives: Intervals
    mapped: Mapped
    kinds: list[str]
    kind: NDArray[np.int64]
    axis: Axis
    own: NDArray[np.int64]
    cells: NDArray[np.int64]
    columns: NDArray[np.int64]
    shown_mapped: NDArray[np.int64]


def picture(recording: Recording) -> Picture:
    """Chooses what is drawn; at most 20,000 rectangles."""
    lives, mapped = intervals(recording), mapped_ranges(recording)
    kinds, kind = _kinds(recording, lives)
    axis = _axis(np.concatenate([lives.addr, mapped.addr]), np.concatenate([lives.size, mapped.size]))
    area = (lives.end - np.maximum(lives.begin, 0)).astype(np.float64) * lives.size
    order = np.argsort(-area, kind="stable")
    own, rest = order[:_MOST_OWN], order[_MOST_OWN:]
    columns = np.linspace(0, max(1, lives.num_events), _NUM_COLUMNS + 1).round().astype(np.int64)
    mapped_area = (mapped.end - np.maximum(mapped.begin, 0)).astype(np.float64) * mapped.size
    return Picture(
        lives=lives,
        mapped=mapped,
        kinds=kinds,
        kind=kind,
        axis=axis,
        own=own[::-1],
        cells=_cells(lives, rest, axis, columns),
        columns=columns,
        shown_mapped=np.argsort(-mapped_area, kind="stable")[:_MOST_MAPPED],
    )


def _axis(addr: NDArray[np.int64], size: NDArray[np.int64]) -> Axis:
    if addr.size == 0:
        return Axis(*(np.zeros(1, np.int64), np.ones(1, np.int64), np.zeros(1, np.int64)))
    start, length = joined_ranges(addr, size)
    return Axis(start, length, np.cumsum(length) - length)


def _cells(lives: Intervals, rows: NDArray[np.int64], axis: Axis, columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """The share of each cell of the grid that the allocations fill; cells that are nearly empty are left out."""
    if rows.size == 0:
        return np.zeros((0, 3), np.int64)
    begin, end = np.maximum(lives.begin[rows], 0), lives.end[rows]
    size = lives.size[rows].astype(np.float64)
    middle = axis.place(lives.addr[rows]) + lives.size[rows] // 2
    row = np.minimum(middle * _NUM_ROWS // axis.total, _NUM_ROWS - 1)
    # The area up to a time t is the sum of min(t, end) - min(t, begin): piecewise linear, so its corners suffice.
    area = np.zeros((_NUM_ROWS, _NUM_COLUMNS + 1))
    for at, sign in ((begin, 1.0), (end, -1.0)):
        column = np.searchsorted(columns, at, side="left")  # the first boundary not before it
        slope = np.zeros((_NUM_ROWS, _NUM_COLUMNS + 2))
        weight = np.zeros((_NUM_ROWS, _NUM_COLUMNS + 2))
        np.add.at(slope, (row, column), sign * size)
        np.add.at(weight, (row, column), sign * size * at)
        area += np.cumsum(slope, 1)[:, :-1] * columns - np.cumsum(weight, 1)[:, :-1]
    width = np.maximum(np.diff(columns), 1)
    share = np.diff(area, axis=1) / (width * axis.total / _NUM_ROWS)
    level = np.minimum(np.rint(share * 255), 255).astype(np.int64)
    found_row, found_column = np.nonzero(level > 1)
    return np.stack([found_column, found_row, level[found_row, found_column]], axis=1)


def _kinds(recording: Recording, lives: Intervals) -> tuple[list[str], NDArray[np.int64]]:
    """What memory is for, by tag, by the passes that made and freed it, else by the part of the program."""
    names = {tag: recording.tags.get(tag, f"tag {tag}") for tag in np.unique(lives.tag).tolist() if tag}
    label = np.full(len(lives), -1)
    labels: list[str] = []

    def assign(rows: NDArray[np.bool_], name: str) -> None:
        if rows.any():
            if name not in labels:
                labels.append(name)
            label[rows] = labels.index(name)

    for tag, name in names.items():
        assign(lives.tag == tag, name)
    others = label < 0
    if (lives.born_backward | lives.freed_backward).any():
        ends = lives.freed < lives.num_events
        assign(others & ends & lives.freed_backward & ~lives.born_backward, "activation")
        assign(others & ends & (lives.freed_backward == lives.born_backward), "temporary")
        assign(label < 0, "other")
    elif len(recording.stacks) > 1:
        parts = np.array([_part(recording, number) for number in range(len(recording.stacks))])
        for part in np.unique(parts):
            assign(others & (parts[lives.stack] == part), str(part))
    else:
        assign(others, "memory")
    peak = lives.live_at(lives.peak())
    weight = np.bincount(label[peak], lives.size[peak].astype(np.float64), len(labels)) if labels else np.zeros(0)
    order = np.argsort(-weight, kind="stable")
    rank = np.empty(len(labels), np.int64)
    rank[order] = np.arange(len(labels))
    return [labels[i] for i in order], rank[label] if labels else label


def _part(recording: Recording, number: int) -> str:
    """The part of a training program that a stack belongs to, by the names in it."""
    text = " ".join(f"{frame.filename} {frame.name}" for frame in recording.stack(number)).lower()
    if not text:
        return "no stack"
    if "/optim" in text or "optimizer" in text:
        return "optimizer"
    return "backward" if "backward" in text or "engine::" in text else "forward"


def samples(num_events: int, count: int) -> NDArray[np.int64]:
    """At most `count` numbers of events, the first and the last among them."""
    return np.unique(np.linspace(0, max(0, num_events - 1), min(count, max(1, num_events))).round().astype(np.int64))


def largest_gap(lives: Intervals, mapped: Mapped, event: int) -> tuple[int, int]:
    """Bytes without an owner after an event, and of those the longest run of addresses."""
    there = np.flatnonzero((mapped.begin <= event) & (event < mapped.end))
    rows = lives.live_at(event)
    start, length = joined_ranges(mapped.addr[there], mapped.size[there])
    taken, taken_length = joined_ranges(lives.addr[rows], lives.size[rows])
    # mapped minus taken is 1 exactly on the free runs; ranges that touch were joined, so runs are whole.
    edges = np.concatenate([start, start + length, taken, taken + taken_length])
    step = np.repeat([1, -1, -1, 1], [start.size, start.size, taken.size, taken.size])
    order = np.argsort(edges, kind="stable")
    edges, depth = edges[order], np.cumsum(step[order])
    gaps = np.diff(edges)[depth[:-1] == 1]
    return int(gaps.sum()), int(gaps.max(initial=0))
