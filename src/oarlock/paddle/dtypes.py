"""Dtypes and places of Paddle, as strings or objects, for torch."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from oarlock.paddle.strict_types import StrictDType

DTypeLike: TypeAlias = torch.dtype | str | type | np.dtype[Any] | StrictDType
NAMES: dict[str, torch.dtype] = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}
SHORT: dict[str, torch.dtype] = {
    "half": torch.float16,
    "float": torch.float64,
    "double": torch.float64,
    "short": torch.int16,
    "int": torch.int32,
    "long": torch.int64,
    "cfloat": torch.complex64,
    "cdouble": torch.complex128,
}
PYTHON: dict[type, torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}


class Place:
    """Where a tensor lives: `CPUPlace()`, `CUDAPlace(0)`, ..."""

    kind = "cpu"

    def __init__(self, index: int = 0) -> None:
        self.index = index

    def get_device_id(self) -> int:
        """Number of the device."""
        return self.index

    def is_cpu_place(self) -> bool:
        """Whether it is host memory."""
        return self.kind == "cpu"

    def is_gpu_place(self) -> bool:
        """Whether it is a GPU."""
        return self.kind == "cuda"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and as_device(self) == as_device(other)

    def __hash__(self) -> int:
        return hash((self.kind, self.index))

    def __repr__(self) -> str:
        return "Place(cpu)" if self.kind == "cpu" else f"Place(gpu:{self.index})"


class CPUPlace(Place):
    """Host memory."""


class CUDAPlace(Place):
    """A CUDA device."""

    kind = "cuda"


class CUDAPinnedPlace(Place):
    """Page-locked host memory."""


class XPUPlace(Place):
    """An XPU device."""

    kind = "xpu"


class CustomPlace(Place):
    """A device of a plug-in, by its name."""

    def __init__(self, kind: str, index: int = 0) -> None:
        super().__init__(index)
        self.kind = kind


def as_dtype(dtype: DTypeLike | None) -> torch.dtype | None:
    """A torch dtype from Paddle's spellings; None stays None."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    if isinstance(dtype, StrictDType):
        return dtype.plain
    if type(dtype) is str and dtype in NAMES and dtype != "uint16":
        return NAMES[dtype]
    if isinstance(dtype, str):
        name = dtype.removeprefix("paddle.").removeprefix("torch.")
        name = {"int": "int64", "uint16": "bfloat16"}.get(name, name)  # Paddle calls bfloat16 by the name of its bits
    elif isinstance(dtype, type) and dtype in PYTHON:
        return PYTHON[dtype]
    else:
        name = np.dtype(dtype).name
    found = NAMES.get(name) or SHORT.get(name)
    if found is None:
        raise TypeError(f"unknown dtype {dtype!r}; known are {', '.join(NAMES)}")
    return found


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.float32` -> "float32"."""
    return str(dtype).removeprefix("torch.")


def as_device(place: Any) -> torch.device | None:
    """A torch device from a place, a string ("gpu:0", "cpu") or a device; None stays None."""
    if place is None or isinstance(place, torch.device):
        return place
    if isinstance(place, Place):
        return torch.device("cpu") if place.kind == "cpu" else torch.device(place.kind, place.index)
    if isinstance(place, int):
        return torch.device("cuda", place)
    name = str(place).removeprefix("Place(").removesuffix(")")
    kind, _, index = name.partition(":")
    kind = {"gpu": "cuda", "gpu_pinned": "cpu", "cuda_pinned": "cpu", "": "cpu"}.get(kind, kind)
    return torch.device(kind, int(index)) if index and kind != "cpu" else torch.device(kind)


def place_of(tensor: Tensor) -> Place:
    """The place of a tensor."""
    kind, index = tensor.device.type, tensor.device.index or 0
    if kind == "cpu":
        return CPUPlace()
    return CUDAPlace(index) if kind == "cuda" else CustomPlace(kind, index)


def as_ints(values: Any) -> list[int]:
    """A list of integers from one, a sequence (of integers or 0-D tensors) or an integer tensor."""
    if type(values) is list or type(values) is tuple:
        return [int(v) for v in values]
    if isinstance(values, Tensor):
        return [int(v) for v in values.flatten().tolist()]
    if isinstance(values, (Sequence, np.ndarray)):
        return [int(v) for v in values]
    return [int(values)]


def as_dims(axis: Any) -> tuple[int, ...] | None:
    """Dimensions as a tuple; None and an empty sequence mean all of them."""
    return None if axis is None else tuple(as_ints(axis)) or None


def as_number(value: Any) -> Any:
    """The Python number in a one-element tensor or array; anything else as it is."""
    return value.item() if isinstance(value, (Tensor, np.ndarray, np.generic)) else value
