"""What convolutions and pools share: layouts, sizes per dimension, and the forms of a padding."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.paddle.dtypes import as_ints

AT = "paddle.nn.functional"
LAYOUTS = {1: "NCL", 2: "NCHW", 3: "NCDHW"}
Sides = list[tuple[int, int]]  # elements before and after, per spatial dimension


def channels_first(x: Tensor, data_format: str) -> Tensor:
    """`x` with the channels as the second dimension."""
    return x if data_format.startswith("NC") else x.movedim(-1, 1)


def channels_back(x: Tensor, data_format: str) -> Tensor:
    """The inverse of `channels_first`."""
    return x if data_format.startswith("NC") else x.movedim(1, -1)


def many(value: Any, dims: int) -> Any:
    """`value` for each of `dims` dimensions, as a list."""
    values = as_ints(value)
    return values * dims if len(values) == 1 else values


def sides(padding: Any, extent: Sequence[int], kernel: Sequence[int], stride: Sequence[int], data_format: str) -> Sides:
    """A padding per side from one of Paddle's forms.

    Args:
        padding: "VALID" (none), "SAME" (as many windows as `ceil(extent / stride)`, more of it after than before), one
            number, one per dimension, two per dimension, or pairs for all dimensions with those of batch and channels.
        extent: spatial sizes of the input.
        kernel: sizes of the window.
        stride: its steps.
        data_format: says where the pairs of batch and channels stand.

    Raises:
        ValueError: another word, or numbers that do not fit the dimensions.
    """
    dims = len(kernel)
    if isinstance(padding, str):
        if padding.upper() == "VALID":
            return [(0, 0)] * dims
        if padding.upper() != "SAME":
            raise ValueError(f"padding must be 'SAME', 'VALID' or numbers, not {padding!r}")
        total = [max((-(-n // s) - 1) * s + k - n, 0) for n, k, s in zip(extent, kernel, stride, strict=True)]
        return [(t // 2, t - t // 2) for t in total]
    if isinstance(padding, (list, tuple)) and padding and isinstance(padding[0], (list, tuple)):
        first = 2 if data_format.startswith("NC") else 1
        spatial = padding[first : first + dims] if len(padding) == dims + 2 else padding
        sizes = [int(n) for pair in spatial for n in pair]
    else:
        sizes = many(padding, dims)
    if len(sizes) == dims:
        return [(n, n) for n in sizes]
    if len(sizes) == 2 * dims:
        return list(zip(sizes[::2], sizes[1::2], strict=True))
    raise ValueError(f"padding {padding} does not fit {dims} spatial dimension(s)")


def even(pads: Sides) -> list[int] | None:
    """One number per dimension if both sides are equal, else None."""
    return [before for before, _ in pads] if all(a == b for a, b in pads) else None


def pad_sides(x: Tensor, pads: Sides, value: float = 0.0) -> Tensor:
    """`x` with its last dimensions padded (cut where negative)."""
    flat = [n for pair in reversed(pads) for n in pair]
    return F.pad(x, flat, value=value) if any(flat) else x


def wide(x: Tensor) -> Tensor:
    """float32 for half types on the CPU, where some kernels of torch lack them."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) and x.device.type == "cpu" else x


def lowest(dtype: torch.dtype) -> float:
    """The smallest finite number of a dtype."""
    return torch.finfo(dtype).min if dtype.is_floating_point else torch.iinfo(dtype).min
