"""Names of `paddle.device.cuda`: those of `paddle.device`, and what `oarlock.memory` tells about allocations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oarlock import memory
from oarlock.paddle.device.devices import device_count, get_device_name, get_device_properties
from oarlock.paddle.device.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    memory_allocated,
    memory_reserved,
    reset_max_memory_allocated,
    reset_max_memory_reserved,
)
from oarlock.paddle.device.streams import Event, Stream, current_stream, stream_guard, synchronize

__all__ = [
    "Event",
    "Stream",
    "allocate_record_guard",
    "allocate_record_plot",
    "allocate_record_table",
    "current_stream",
    "device_count",
    "empty_cache",
    "get_device_name",
    "get_device_properties",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_summary",
    "reset_max_memory_allocated",
    "reset_max_memory_reserved",
    "stream_guard",
    "synchronize",
]
_recorders: list[Any] = []


@contextlib.contextmanager
def allocate_record_guard(flag: bool = True, of: Any = "cpu") -> Iterator[None]:
    """Record every allocation of the block; the functions below tell of it.

    Args:
        flag: False records nothing.
        of: a device that `oarlock.memory.record` knows, or a pool.
    """
    if not flag:
        yield
        return
    with memory.record(of) as recorder:
        _recorders.append(recorder)
        yield
    del _recorders[:-1]  # the last one stays, to be asked


def _last() -> Any:
    if not _recorders:
        raise RuntimeError("nothing was recorded; put the program into `with allocate_record_guard(True):`")
    return _recorders[-1]


def memory_summary(device: Any = None) -> None:
    """Print three tables about the recorded allocations: figures, blocks by size, and the largest at the peak."""
    print(memory.memory_summary(_last()))


def allocate_record_table(device: Any = None, save_path: str | None = None) -> None:
    """The same tables, into a file."""
    text = memory.memory_summary(_last())
    if save_path is None:
        print(text)
    else:
        Path(save_path).write_text(text + "\n", encoding="utf-8")


def allocate_record_plot(device: Any = None, save_path: str | None = None) -> None:
    """The recording as a page (`.html`) or in another form that `oarlock.memory.write` knows.

    Raises:
        ValueError: another suffix.
    """
    memory.write(_last().recording(), save_path or "memory.html")
