"""Records what happens in a pool: its last events in a ring of the core, with the stacks of Python where asked for.

with record(pool, stacks=True) as recorder:
    work()
write(recorder.recording(), "memory.html")
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from oarlock import _native
from oarlock.memory.events import BLOCK, EVENT, Action, BlockState, Mark, Recording
from oarlock.memory.export import write
from oarlock.memory.intervals import intervals_of
from oarlock.memory.pool import Pool
from oarlock.memory.sources import enter_source, leave_source
from oarlock.stacks import StackTable

_CLOCK_EVERY = 16  # events, in the core
_POOL_BLOCK = np.dtype(
    [
        *((name, "<u8") for name in ("addr", "size", "requested", "stream", "mapped_pages")),
        *((name, "<u4") for name in ("stack", "name", "tag", "pins")),
        *(("state", "<i4"), ("blocked", "<i4")),
    ]
)


class PoolRecorder:
    """While entered, notes allocations, frees and moves of pages of a pool.

    Args:
        pool: one that nothing else records.
        num_events: how many of the last events are kept at least (40 bytes each).
        stacks: note where Python asked.
        min_stack_bytes: smaller allocations get no stack.
        on_oom: file that is written where a request fails; the error names it.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        num_events: int = 1 << 20,
        stacks: bool = False,
        min_stack_bytes: int = 0,
        on_oom: str | os.PathLike[str] | None = None,
    ) -> None:
        if num_events < 1:
            raise ValueError(f"num_events must be at least 1, got {num_events}")
        self.pool = pool
        self.num_kept = num_events
        self._least = min_stack_bytes if stacks else 1 << 64
        self._on_oom = None if on_oom is None else Path(on_oom)
        self._stacks = StackTable()
        self._names = {"": 0}
        self._final: Recording | None = None
        self._set_context = _native.library().oarlock_pool_context

    def __enter__(self) -> Self:
        if self.pool.recorder is not None:
            raise ValueError("the pool is being recorded already")
        self.pool.call("oarlock_pool_record", self.num_kept)
        self.pool.recorder = self
        enter_source(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave_source(self)
        self.pool.recorder = None
        self._final = self.recording()
        self.pool.call("oarlock_pool_record", 0)

    def before_malloc(self, size: int) -> None:
        """Called by the pool: what the core notes with the allocation."""
        self._set_context(self._stacks.capture(3) if size >= self._least else 0, 0)

    def out_of_memory(self) -> str:
        """Called by the pool where a request has failed: what its message says about the file."""
        if self._on_oom is None:
            return ""
        return f" {write(self.recording(), self._on_oom)} shows what memory was taken by."

    def _name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def name(self, addr: int, name: str) -> None:
        """Names a live allocation.

        Raises:
            ValueError: there is none at the address.
        """
        self._set_context(0, self._name(name))
        self.pool.call("oarlock_pool_annotate", addr, Mark.BLOCK)

    def annotate(self, name: str, mark: Mark = Mark.MOMENT) -> None:
        """Notes a moment, or the begin or end of a region."""
        self._set_context(0, self._name(name))
        self.pool.call("oarlock_pool_annotate", 0, mark)

    def largest(self) -> int:
        """Bytes of the largest request that the pool would meet now."""
        return self.pool.largest()

    def num_events(self) -> int:
        """Events so far, also those that are no longer kept."""
        _, begin, num_events, _ = self._snapshot(1 << 63, 0)
        return begin + num_events

    def recording(self, since: int = 0) -> Recording:
        """The events from number `since` on, as far as they are kept, and the blocks of the same moment."""
        if self._final is not None:
            skipped = min(max(since - self._final.num_dropped, 0), len(self._final))
            dropped = self._final.num_dropped + skipped
            return dataclasses.replace(self._final, events=self._final.events[skipped:], num_dropped=dropped)
        events, begin, _, found = self._snapshot(since, None)
        _fill_times(events, begin)
        streams = (ctypes.c_uint64 * (1 << 16))()
        num_streams = ctypes.c_int64()
        self.pool.call("oarlock_pool_streams", streams, len(streams), ctypes.byref(num_streams))
        handles = list(streams[: num_streams.value]) or [0]
        stats = self.pool.stats()
        frames, stacks = self._stacks.export()
        return Recording(
            events=events,
            blocks=_blocks(found, events, handles),
            frames=frames,
            stacks=stacks,
            names=list(self._names),
            streams=handles,
            source=f"pool of {self.pool.driver}",
            num_dropped=begin,
            capacity=stats.capacity_bytes,
            page_bytes=stats.page_bytes,
            settings=dataclasses.asdict(stats),
        )

    def _snapshot(self, since: int, room: int | None) -> tuple[NDArray[Any], int, int, NDArray[Any]]:
        """Events, the number of the first, how many there are, blocks; both tables empty for room 0."""
        size = 1024 if room is None else room
        begin, num_events, num_blocks = ctypes.c_uint64(), ctypes.c_int64(), ctypes.c_int64()
        while True:
            events, blocks = np.zeros(size, EVENT), np.zeros(size, _POOL_BLOCK)
            self.pool.call(
                "oarlock_pool_snapshot",
                *(since, events.ctypes.data, size, ctypes.byref(begin), ctypes.byref(num_events)),
                *(blocks.ctypes.data, size, ctypes.byref(num_blocks)),
            )
            needed = max(num_events.value, num_blocks.value)
            if room is not None or needed <= size:
                return events[: num_events.value], begin.value, num_events.value, blocks[: num_blocks.value]
            size = needed + needed // 8


def _fill_times(events: NDArray[Any], begin: int) -> None:
    """Times between those that the core has read."""
    number = np.arange(begin, begin + events.size)
    read = (number % _CLOCK_EVERY == 0) | (events["action"] > Action.FREE_COMPLETED)
    if read.any():
        events["t_ns"] = np.interp(number, number[read], events["t_ns"][read])


def _blocks(found: NDArray[Any], events: NDArray[Any], streams: list[int]) -> NDArray[Any]:
    """The pool's blocks; pieces of free ones that events tell are not yet anybody's are pending."""
    blocks = np.zeros(found.size, BLOCK)
    for name in ("addr", "size", "requested", "stack", "name", "tag"):
        blocks[name] = found[name]
    blocks["state"] = found["state"]
    blocks["detail"] = (found["mapped_pages"] == 0) & (found["state"] != BlockState.HOLE)  # asleep
    order = {handle: row for row, handle in enumerate(streams)}
    blocks["stream"] = [order.get(handle, 0) for handle in found["stream"].tolist()]
    blocks = blocks[np.argsort(blocks["addr"], kind="stable")]
    lives = intervals_of(events, np.zeros(0, BLOCK))
    for row in np.flatnonzero((lives.end == lives.num_events) & (lives.freed < lives.num_events)).tolist():
        addr, size = int(lives.addr[row]), int(lives.size[row])
        at = int(np.searchsorted(blocks["addr"], addr, side="right")) - 1
        if blocks["state"][at] != BlockState.FREE:
            continue  # a pinned one is a block of its own
        pieces = np.repeat(blocks[at : at + 1], 3)
        pieces["addr"] = [blocks["addr"][at], addr, addr + size]
        pieces["size"] = [addr - pieces["addr"][0], size, blocks["addr"][at] + blocks["size"][at] - addr - size]
        pieces["state"][1], pieces["requested"][1] = BlockState.PENDING, size
        for name in ("stack", "name", "tag", "stream"):
            pieces[name][1] = getattr(lives, name)[row]
        blocks = np.concatenate([blocks[:at], pieces[pieces["size"] > 0], blocks[at + 1 :]])
    return blocks
