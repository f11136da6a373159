"""`paddle.base.core`: what programs ask the core of Paddle for."""

from types import SimpleNamespace
from typing import Any

import torch

from oarlock.paddle.dtypes import CPUPlace, CUDAPinnedPlace, CUDAPlace, CustomPlace, Place, XPUPlace
from oarlock.paddle.framework import (
    is_compiled_with_cinn,
    is_compiled_with_cuda,
    is_compiled_with_custom_device,
    is_compiled_with_distribute,
    is_compiled_with_ipu,
    is_compiled_with_rocm,
    is_compiled_with_xpu,
)

__all__ = [
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "CustomPlace",
    "DataType",
    "Place",
    "VarDesc",
    "XPUPlace",
    "eager",
    "get_cuda_device_count",
    "is_bfloat16_supported",
    "is_compiled_with_cinn",
    "is_compiled_with_cuda",
    "is_compiled_with_custom_device",
    "is_compiled_with_distribute",
    "is_compiled_with_ipu",
    "is_compiled_with_rocm",
    "is_compiled_with_xpu",
    "is_float16_supported",
]

_DTYPES: dict[str, Any] = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "BF16": torch.bfloat16,
    "FP32": torch.float32,
    "FP64": torch.float64,
    "COMPLEX64": torch.complex64,
    "COMPLEX128": torch.complex128,
    "FP8_E4M3FN": torch.float8_e4m3fn,
    "FP8_E5M2": torch.float8_e5m2,
}
VarDesc = SimpleNamespace(VarType=SimpleNamespace(**_DTYPES))
_LONG = {"FP": "FLOAT", "BF": "BFLOAT"}
DataType = SimpleNamespace(**{
    (_LONG[name[:2]] + name[2:] if name in ("FP16", "BF16", "FP32", "FP64") else name.replace("FP8", "FLOAT8")): dtype
    for name, dtype in _DTYPES.items()
})  # fmt: skip
eager = SimpleNamespace(Tensor=torch.Tensor)


def get_cuda_device_count() -> int:
    """How many GPUs there are."""
    return torch.cuda.device_count()


def is_float16_supported(place: Any) -> bool:
    """Whether a device computes with float16: GPUs do."""
    return isinstance(place, Place) and place.kind != "cpu"


def is_bfloat16_supported(place: Any) -> bool:
    """Whether a device computes with bfloat16."""
    return not is_float16_supported(place) or torch.cuda.is_bf16_supported()
