"""Replays a trace of allocations against models of allocators: simulated, by arithmetic alone.

The peers are modelled after their sources; no device has confirmed the models. What they share: sizes and lifetimes
come from the trace whatever the allocator does, and work on a stream is done `lag` events after it was queued or once
it was waited for.
"""

from __future__ import annotations

import ctypes
import dataclasses

import numpy as np

from oarlock import _native
from oarlock._native import abi
from oarlock.memory.trace import Trace

_MIB = 1 << 20
_MODELS: dict[str, tuple[int, int]] = {
    "oarlock": (0, 2 * _MIB),
    "caching": (1, 20 * _MIB),
    "expandable-20": (2, 20 * _MIB),
    "expandable-12": (2, 12 * _MIB),
    "memmove": (3, 2 * _MIB),
}
ALLOCATORS: dict[str, str] = {
    "oarlock": "this package's pool, the real code, on simulated pages of 2 MiB",
    "caching": "torch's caching allocator, segments as by default",
    "expandable-20": "torch's expandable segments, pages of 20 MiB (the default)",
    "expandable-12": "torch's expandable segments, pages of 12 MiB (about the least that torch accepts)",
    "memmove": "Paddle 3.3's compaction: the device stops, live data is copied together",
}


@dataclasses.dataclass(frozen=True)
class Replay:
    """What an allocator did with a trace under a capacity. Simulated.

    Attributes:
        allocator, capacity: as asked for.
        failed_at: the event whose request it could not meet, None if it finished.
        peak_reserved_bytes: the most that it had from the device.
        mapped_bytes, unmapped_bytes: pages or segments that it put behind addresses, or took away.
        copied_bytes: live data that it moved.
        num_device_syncs: times that the whole device stood still; num_stream_syncs: waits for a stream or an event.
        num_rounds: requests that more memory from the device alone did not meet.
    """

    allocator: str
    capacity: int
    failed_at: int | None
    peak_reserved_bytes: int
    mapped_bytes: int
    unmapped_bytes: int
    copied_bytes: int
    num_device_syncs: int
    num_stream_syncs: int
    num_rounds: int

    @property
    def finished(self) -> bool:
        return self.failed_at is None

    @property
    def churn_bytes(self) -> int:
        """Bytes mapped, unmapped and copied beyond the first maps of what it had at most."""
        return self.mapped_bytes + self.unmapped_bytes + self.copied_bytes - self.peak_reserved_bytes


def replay(trace: Trace, allocator: str, capacity: int, *, page_bytes: int | None = None, lag: int = 256) -> Replay:
    """Replays until the end or until a request cannot be met.

    Args:
        trace: see :class:`Trace`.
        allocator: one of :data:`ALLOCATORS`.
        capacity: bytes of the device.
        page_bytes: of large requests, instead of the allocator's own.
        lag: events until work is done that nobody waits for.

    Raises:
        ValueError: no such allocator, or a size that it cannot have.
    """
    number, default_bytes = _model(allocator)
    page_bytes = default_bytes if page_bytes is None else page_bytes
    if page_bytes < 512 or (allocator == "oarlock" and page_bytes & (page_bytes - 1)):
        raise ValueError(f"page_bytes must be at least 512, for oarlock a power of two, got {page_bytes}")
    if not page_bytes <= capacity < 2**60:
        raise ValueError(f"capacity must be at least a page of {page_bytes} bytes, got {capacity}")
    if lag < 0:
        raise ValueError(f"lag must not be negative, got {lag}")
    config = abi.ReplayConfig(capacity, page_bytes, lag, number)
    result = abi.ReplayResult()
    columns = [np.ascontiguousarray(c) for c in (trace.action, trace.id, trace.size, trace.stream)]
    status = _native.library().oarlock_replay(
        *[c.ctypes.data for c in columns], len(trace), ctypes.byref(config), ctypes.byref(result)
    )
    if status:
        raise MemoryError("the host has no memory left for the books of the replay")
    figures = {name: getattr(result, name) for name in abi.REPLAY_FIGURES}
    failed_at = figures.pop("failed_at")
    return Replay(allocator, capacity, None if failed_at < 0 else failed_at, **figures)


def _model(allocator: str) -> tuple[int, int]:
    if allocator not in _MODELS:
        raise ValueError(f"allocator must be one of {', '.join(_MODELS)}, got {allocator!r}")
    return _MODELS[allocator]


def min_capacity(
    trace: Trace, allocator: str, *, page_bytes: int | None = None, lag: int = 256, step: int = 2 * _MIB
) -> int:
    """The smallest capacity, in whole steps, at which a replay finishes, found by bisection.

    Where finishing is not monotone in the capacity, this is one of the places where failure turns into success.
    """
    low = max(-(-trace.peak_bytes() // step), 1)  # no allocator needs less than what is live
    while low * step < (page_bytes or _model(allocator)[1]):
        low += 1

    def finishes(steps: int) -> bool:
        return replay(trace, allocator, steps * step, page_bytes=page_bytes, lag=lag).finished

    width = max(low // 64, 1)
    high = low
    while not finishes(high):
        low, high = high + 1, high + width
        width *= 2
    while low < high:
        middle = (low + high) // 2
        if finishes(middle):
            high = middle
        else:
            low = middle + 1
    return high * step
