"""Which devices there are."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from oarlock.paddle.dtypes import as_device


def _kind() -> str | None:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if accelerator is None else accelerator.type


def _word(kind: str) -> str:
    return "gpu" if kind == "cuda" else kind


def is_available() -> bool:
    """Whether there is another device than the CPU."""
    return torch.accelerator.is_available()


def device_count(device_type: str | None = None) -> int:
    """How many there are, of a kind."""
    if device_type is not None and device_type != _word(_kind() or ""):
        return 0
    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0


def get_all_device_type() -> list[str]:
    """The kinds of devices beside the CPU."""
    kind = _kind()
    return [] if kind is None else [_word(kind)]


def get_all_custom_device_type() -> list[str]:
    """The kinds that plug-ins bring."""
    return [kind for kind in get_all_device_type() if kind not in ("gpu", "xpu", "mps")]


def get_available_device() -> list[str]:
    """`gpu:0`, ..."""
    return [f"{kind}:{number}" for kind in get_all_device_type() for number in range(device_count())]


def get_available_custom_device() -> list[str]:
    """Those of plug-ins."""
    return [name for name in get_available_device() if name.partition(":")[0] in get_all_custom_device_type()]


def number_of(device: Any) -> int:
    """The number of a device, of the current one for None.

    Raises:
        ValueError: there is none but the CPU.
    """
    if not torch.accelerator.is_available():
        raise ValueError("there is no device but the CPU here")
    if isinstance(device, int):
        return device
    found = as_device(device)
    return torch.accelerator.current_device_index() if found is None or found.index is None else found.index


def get_device_properties(device: Any = None) -> Any:
    """Name, memory and processors of a GPU."""
    return torch.cuda.get_device_properties(number_of(device))


def get_device_name(device: Any = None) -> str:
    """The name of a GPU."""
    return torch.cuda.get_device_name(number_of(device))


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """The compute capability of a GPU, (major, minor)."""
    return torch.cuda.get_device_capability(number_of(device))


def current_device() -> int:
    """The number of the current device; 0 where there is none but the CPU."""
    return torch.accelerator.current_device_index() if torch.accelerator.is_available() else 0


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether the device computes with bfloat16; every CPU does."""
    return not torch.cuda.is_available() or torch.cuda.is_bf16_supported(including_emulation)


@contextlib.contextmanager
def device_guard(device: Any) -> Iterator[None]:
    """New tensors of the block are on a device; None changes nothing."""
    found = as_device(device)
    with contextlib.nullcontext() if found is None else torch.device(found):
        yield


def get_device_module(device: Any = None) -> ModuleType:
    """`paddle.cuda` for a GPU, `paddle.device` for the CPU and devices of plug-ins; None for the current device."""
    found = torch.get_default_device() if device is None else as_device(device)
    kind = "cuda" if found is not None and found.type == "cuda" else "device"
    return importlib.import_module(f"oarlock.paddle.{kind}")


def manual_seed(seed: int) -> None:
    """Seed every generator."""
    torch.manual_seed(seed)


def ipc_collect() -> None:
    """Free the memory of a GPU that other processes have given back."""
    number_of(None)
    torch.cuda.ipc_collect()
