"""Rounding to int8 as Paddle's fused kernels do at their end."""

import torch
from torch import Tensor


def quantised(x: Tensor, scale: float, round_type: int, largest: float, smallest: float) -> Tensor:
    """`x` itself without a positive scale; else int8 `round(largest·scale·x)` within [smallest, largest].

    `round_type` 0 rounds halves to even, 1 away from zero.
    """
    if scale <= 0:
        return x
    value = x.float() * (largest * scale)
    rounded = torch.round(value) if round_type == 0 else torch.sign(value) * torch.floor(value.abs() + 0.5)
    return rounded.clamp(smallest, largest).to(torch.int8)
