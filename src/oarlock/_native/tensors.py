"""What the core can read in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def check_tensor(tensor: Tensor, name: str, *, dtype: torch.dtype, shape: Sequence[int | None]) -> None:
    """Refuses a tensor that the core cannot read in place; None in ``shape`` stands for any size.

    Raises:
        TypeError: not a tensor, another dtype, or not a CPU tensor.
        ValueError: another shape, or not contiguous.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.dtype != dtype:
        raise TypeError(f"{name} must have dtype {dtype}, got {tensor.dtype}")
    if tensor.device.type != "cpu":
        raise TypeError(f"{name} must be on the CPU, got {tensor.device}")
    matches = tensor.dim() == len(shape) and all(
        want is None or got == want for got, want in zip(tensor.shape, shape, strict=True)
    )
    if not matches:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} must have shape [{wanted}], got {list(tensor.shape)}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()}; call .contiguous() first")
