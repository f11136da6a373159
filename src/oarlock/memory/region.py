"""What a part of a program did to memory.

with region("attention") as r:
    out = attention(q, k, v)
print(r)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oarlock.memory.amounts import amount
from oarlock.memory.events import Action, Mark, Recording
from oarlock.memory.sources import Source, sources
from oarlock.stacks import Frame, outside_torch


@dataclasses.dataclass(frozen=True)
class Survivor:
    """An allocation of a region that outlived it.

    Attributes:
        addr: its address; size: bytes.
        name: of the tensor or of the operation that made it, "" where unknown.
        stack: where it was made, innermost first; empty where none was noted.
    """

    addr: int
    size: int
    name: str
    stack: tuple[Frame, ...]


@dataclasses.dataclass
class Region:
    """Figures of a region, complete once it is left.

    Attributes:
        name: as given.
        num_allocs, alloc_bytes: allocations in it.
        num_frees, free_bytes: frees in it, also of what was there before.
        peak_delta: bytes above the beginning, at most.
        live_delta: bytes at the end above the beginning.
        moved_bytes: of pages that a pool moved meanwhile.
        largest_before, largest_after: the largest request that a pool would have met; None without a pool.
        survivors: allocations of the region that live at its end, the largest first.
        complete: False if the recorder has dropped events of the region already: the figures are of the rest.
    """

    name: str
    num_allocs: int = 0
    alloc_bytes: int = 0
    num_frees: int = 0
    free_bytes: int = 0
    peak_delta: int = 0
    live_delta: int = 0
    moved_bytes: int = 0
    largest_before: int | None = None
    largest_after: int | None = None
    survivors: tuple[Survivor, ...] = ()
    complete: bool = True

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {self.num_allocs:,} allocations of {amount(self.alloc_bytes)}, "
            f"{self.num_frees:,} frees of {amount(self.free_bytes)}; "
            f"peak +{amount(self.peak_delta)}, at the end {amount(self.live_delta, sign=True)}"
        ]
        if self.largest_before is not None and self.largest_after is not None:
            lines.append(f"  largest request {amount(self.largest_before)} before, {amount(self.largest_after)} after")
        if self.moved_bytes:
            lines.append(f"  {amount(self.moved_bytes)} of pages moved")
        for survivor in self.survivors[:5]:
            level = outside_torch(survivor.stack)
            where = f" at {level.filename}:{level.line}" if level else ""
            lines.append(f"  left {amount(survivor.size)} {survivor.name}{where}")
        if len(self.survivors) > 5:
            lines.append(f"  and {len(self.survivors) - 5} more")
        return "\n".join(lines)


def _largest(source: Source) -> int | None:
    ask = getattr(source, "largest", None)
    return None if ask is None else ask()


@contextmanager
def region(name: str, of: Source | None = None) -> Iterator[Region]:
    """Notes begin and end of a part of the program, and what it did to memory.

    Args:
        name: shown in pages too.
        of: a recorder; the one that was entered last if None.

    Yields:
        the figures; they are filled in when the block is left, also by an error.

    Raises:
        ValueError: nothing records.
    """
    source = of if of is not None else (sources[-1] if sources else None)
    if source is None:
        raise ValueError(f"nothing records memory: wrap region({name!r}) in `with record():`")
    result = Region(name, largest_before=_largest(source))
    source.annotate(name, Mark.BEGIN)
    since = source.num_events()
    try:
        yield result
    finally:
        recording = source.recording(since)
        source.annotate(name, Mark.END)
        _fill(result, recording, since)
        result.largest_after = _largest(source)


def _fill(result: Region, recording: Recording, since: int) -> None:
    events = recording.events
    result.complete = recording.num_dropped <= since
    size = events["size"].astype(np.int64)
    allocs, frees = events["action"] == Action.ALLOC, _frees(events)
    result.num_allocs, result.alloc_bytes = int(allocs.sum()), int(size[allocs].sum())
    result.num_frees, result.free_bytes = int(frees.sum()), int(size[frees].sum())
    live = np.cumsum(np.where(allocs, size, 0) - np.where(frees, size, 0))
    result.peak_delta = max(0, int(live.max(initial=0)))
    result.live_delta = int(live[-1]) if live.size else 0
    moved = (events["action"] == Action.MAP) & (events["detail"] == 1)
    result.moved_bytes = int(size[moved].sum())
    result.survivors = _survivors(recording, allocs, frees)


def _survivors(recording: Recording, allocs: NDArray[np.bool_], frees: NDArray[np.bool_]) -> tuple[Survivor, ...]:
    events = recording.events[allocs | frees]
    free = frees[allocs | frees]
    # Of an address the last event counts; its block tells the name that it has now.
    made = {addr for addr, freed in zip(events["addr"].tolist(), free.tolist(), strict=True) if not freed}
    made -= {addr for addr, freed in dict(zip(events["addr"].tolist(), free.tolist(), strict=True)).items() if freed}
    blocks = [block for block in recording.blocks.tolist() if block[0] in made]
    return tuple(
        Survivor(addr, requested, recording.names[int(name)], tuple(recording.stack(int(stack))))
        for addr, _, requested, stack, name, *_ in sorted(blocks, key=lambda block: -block[1])
    )


def _frees(events: NDArray[Any]) -> NDArray[np.bool_]:
    """[N] the frees that a program asked for: completed at once, or requested and completed later."""
    action = events["action"]
    requested = action == Action.FREE_REQUESTED
    completed = action == Action.FREE_COMPLETED
    if not requested.any():
        return completed
    # The completion of an earlier request is no free of its own.
    waiting: dict[int, int] = {}
    result = requested | completed
    for i in np.flatnonzero(requested | completed):
        addr = int(events["addr"][i])
        if requested[i]:
            waiting[addr] = int(i)
        elif waiting.pop(addr, None) is not None:
            result[i] = False
    return result
