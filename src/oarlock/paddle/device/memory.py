"""Bytes of a device's memory, as torch's allocator counts them."""

from __future__ import annotations

from typing import Any

import torch

from oarlock.paddle.device.devices import number_of


def memory_allocated(device: Any = None) -> int:
    """Bytes of live tensors."""
    return torch.accelerator.memory_allocated(number_of(device))


def max_memory_allocated(device: Any = None) -> int:
    """Bytes of live tensors at most."""
    return torch.accelerator.max_memory_allocated(number_of(device))


def memory_reserved(device: Any = None) -> int:
    """Bytes taken from the device."""
    return torch.accelerator.memory_reserved(number_of(device))


def max_memory_reserved(device: Any = None) -> int:
    """Bytes taken from the device at most."""
    return torch.accelerator.max_memory_reserved(number_of(device))


def reset_peak_memory_stats(device: Any = None) -> None:
    """The largest values begin anew."""
    torch.accelerator.reset_peak_memory_stats(number_of(device))


reset_max_memory_allocated = reset_max_memory_reserved = reset_peak_memory_stats


def empty_cache() -> None:
    """Give memory that no tensor uses back to the device; without one there is nothing to give."""
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
