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
def stream_guard(stream: torch.Stream) -> Iterator[None]:
    """Another stream for a block."""
    before = set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)


def synchronize(device: Any = None) -> None:
    """Wait for all queued work of a device."""
    torch.accelerator.synchronize(number_of(device))
