"""Names of dtypes: torch's own, and the codes of safetensors."""

import torch

SAFETENSORS_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


_QUANTIZED = {"qint8", "quint8", "qint32", "quint4x2", "quint2x4"}  # their tensors are more than their elements
_DTYPES = {code: dtype for dtype, code in SAFETENSORS_NAMES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """torch's name of a dtype: `float32`, `bfloat16`, ..."""
    return str(dtype).removeprefix("torch.")


def dtype_from_safetensors(code: str) -> torch.dtype | None:
    """The dtype of a safetensors code such as BF16; None if there is none."""
    return _DTYPES.get(code)


def dtype_of(name: str) -> torch.dtype:
    """The inverse of dtype_name; ValueError if this torch has no such dtype for plain tensors."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or name in _QUANTIZED:
        raise ValueError(f"torch {torch.__version__} has no dtype {name!r}")
    return dtype
