"""Streams and events."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from oarlock.paddle.device.devices import number_of

Stream, Event = torch.Stream, torch.Event


def current_stream(device: Any = None) -> torch.Stream:
    """The stream that work is queued on."""
    return torch.accelerator.current_stream(number_of(device))


def set_stream(stream: torch.Stream) -> torch.Stream:
    """Another one; returns the former."""
    before = torch.accelerator.current_stream(stream.device_index)
    torch.accelerator.set_stream(stream)
    return before


@contextlib.contextmanager
def stream_guard(stream: torch.Stream | None = None) -> Iterator[None]:
    """Another stream for a block; None changes nothing."""
    if stream is None:
        yield
        return
    before = set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)


StreamContext = stream = stream_guard


def is_current_stream_capturing() -> bool:
    """Whether the current stream is being captured into a CUDA graph."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def get_stream_from_external(data_ptr: int, device: Any = None) -> torch.Stream:
    """The stream of another library, by its handle."""
    return torch.cuda.ExternalStream(data_ptr, number_of(device))


def synchronize(device: Any = None) -> None:
    """Wait for all queued work of a device."""
    torch.accelerator.synchronize(number_of(device))
