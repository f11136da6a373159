"""In which dtype the ops of this package compute."""

import torch
from torch import Tensor


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for the half types (float16, bfloat16), the dtype itself for float32 and float64."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def autocast_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype in which a matmul of `tensor` runs: autocast's where it is on (float64 is left alone), else its own."""
    device_type = tensor.device.type
    if tensor.dtype != torch.float64 and torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return tensor.dtype


def without_autocast(tensor: Tensor) -> torch.autocast:
    """A context in which the matmuls of an op keep the dtypes that the op has chosen."""
    return torch.autocast(tensor.device.type, enabled=False)
