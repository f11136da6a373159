"""Convolutions and transposed convolutions over one to three dimensions."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.nn.functional.extents import (
    AT,
    LAYOUTS,
    channels_back,
    channels_first,
    even,
    many,
    pad_sides,
    sides,
)


def _sound(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The operands in float32 for bfloat16 volumes: oneDNN's gradients of strided ones are wrong (torch 2.13)."""
    if weight.ndim < 5 or x.dtype != torch.bfloat16 or x.device.type != "cpu":
        return x, weight, bias
    return x.float(), weight.float(), None if bias is None else bias.float()


def _declare_conv(dims: int) -> None:
    function = getattr(F, f"conv{dims}d")

    def call(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        data_format: str = LAYOUTS[dims],
    ) -> Tensor:
        first, steps = channels_first(x, data_format), many(stride, dims)
        # Paddle takes a dilation of 1 where the padding is "SAME".
        spread = [1] * dims if str(padding).upper() == "SAME" else many(dilation, dims)
        pads = sides(padding, first.shape[2:], weight.shape[2:], steps, data_format)
        equal = even(pads)
        if equal is None:
            first, equal = pad_sides(first, pads), [0] * dims
        made = function(*_sound(first, weight, bias), steps, equal, spread, groups)
        return channels_back(made, data_format).to(x.dtype)

    call.__name__ = f"conv{dims}d"
    call.__doc__ = f"Convolution over {dims} dimension(s); `padding` also per side, or 'SAME', 'VALID'."
    api(f"paddle.conv{dims}d", at=AT)(call)


def _transposed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    output_padding: Any,
    dilation: Any,
    groups: int,
    output_size: Any,
    data_format: str,
) -> Tensor:
    dims = weight.ndim - 2
    function = getattr(F, f"conv_transpose{dims}d")
    first, weight, bias = _sound(channels_first(x, data_format), weight, bias)
    steps = many(stride, dims)
    spread = [1] * dims if str(padding).upper() == "SAME" else many(dilation, dims)
    pads = sides(padding, first.shape[2:], weight.shape[2:], steps, data_format)
    extra = many(output_padding, dims)
    if output_size is not None:
        shape = zip(first.shape[2:], weight.shape[2:], steps, spread, pads, strict=True)
        least = [(n - 1) * s + d * (k - 1) + 1 - a - b for n, k, s, d, (a, b) in shape]
        extra = [wanted - size for wanted, size in zip(many(output_size, dims), least, strict=True)]
    equal = even(pads)
    if equal is not None and all(0 <= e < max(s, d) for e, s, d in zip(extra, steps, spread, strict=True)):
        made = function(first, weight, bias, steps, equal, extra, groups, spread)
    else:
        whole = function(first, weight, None, steps, 0, 0, groups, spread)
        made = pad_sides(whole, [(-a, e - b) for (a, b), e in zip(pads, extra, strict=True)])
        made = made if bias is None else made + bias.reshape(-1, *[1] * dims)
    return channels_back(made, data_format).to(x.dtype)


def _declare_transposed(name: str, dims: int, *, has_groups_first: bool) -> None:
    layout = LAYOUTS[dims]

    def dilation_first(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        output_size: Any = None,
        data_format: str = layout,
    ) -> Tensor:
        return _transposed(x, weight, bias, stride, padding, output_padding, dilation, groups, output_size, data_format)

    def groups_first(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
        output_size: Any = None,
        data_format: str = layout,
    ) -> Tensor:
        return _transposed(x, weight, bias, stride, padding, output_padding, dilation, groups, output_size, data_format)

    call = groups_first if has_groups_first else dilation_first
    call.__name__ = name
    call.__doc__ = f"Transposed convolution over {dims} dimension(s), of `output_size` if given."
    api(at=AT)(call)


for _dims in (1, 2, 3):
    _declare_conv(_dims)
    _declare_transposed(f"conv{_dims}d_transpose", _dims, has_groups_first=_dims != 2)
    _declare_transposed(f"conv_transpose{_dims}d", _dims, has_groups_first=True)  # torch's name, torch's order
