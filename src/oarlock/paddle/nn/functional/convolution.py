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
        return channels_back(function(first, weight, bias, steps, equal, spread, groups), data_format)

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
    first, steps = channels_first(x, data_format), many(stride, dims)
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
    return channels_back(made, data_format)


def _declare_transposed(dims: int) -> None:
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

    call = dilation_first if dims == 2 else groups_first  # the order of Paddle's parameters
    call.__name__ = f"conv{dims}d_transpose"
    call.__doc__ = f"Transposed convolution over {dims} dimension(s), of `output_size` if given."
    api(at=AT)(call)


for _dims in (1, 2, 3):
    _declare_conv(_dims)
    _declare_transposed(_dims)


def _deformed(x: Tensor, offset: Tensor, mask: Tensor | None, kernel: list[int], *where: list[int]) -> Tensor:
    """The windows of `x` at shifted places, bilinear between pixels, 0 outside: [N, C, kh·kw, Ho·Wo]."""
    stride, pads, dilation = where
    batch, channels, height, width = x.shape
    out_h, out_w = offset.shape[2:]
    taps = kernel[0] * kernel[1]
    groups = offset.shape[1] // (2 * taps)
    shift = offset.reshape(batch, groups, taps, 2, out_h, out_w)

    def base(axis: int, size: int) -> Tensor:
        at = torch.arange(size, device=x.device, dtype=x.dtype) * stride[axis] - pads[axis]
        tap = torch.arange(kernel[axis], device=x.device, dtype=x.dtype) * dilation[axis]
        return tap[:, None] + at  # [k, size]

    row = base(0, out_h).repeat_interleave(kernel[1], 0)[..., None] + shift[:, :, :, 0]
    column = base(1, out_w).repeat(kernel[0], 1)[:, None] + shift[:, :, :, 1]
    images = x.reshape(batch, groups, channels // groups, height * width)
    top, left = row.floor(), column.floor()
    total: Any = 0.0
    for down in (0, 1):
        for right in (0, 1):
            r, c = top + down, left + right
            inside = (r >= 0) & (r < height) & (c >= 0) & (c < width)
            share = (1 - (row - r).abs()) * (1 - (column - c).abs()) * inside
            index = (r.clamp(0, height - 1) * width + c.clamp(0, width - 1)).long()
            picked = images.gather(3, index.flatten(2)[:, :, None].expand(-1, -1, channels // groups, -1))
            total = total + picked * share.flatten(2)[:, :, None]
    if mask is not None:
        total = total * mask.reshape(batch, groups, 1, -1)
    return total.reshape(batch, channels, taps, out_h * out_w)


@api(at="paddle.vision.ops")
def deform_conv2d(
    x: Tensor,
    offset: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    deformable_groups: int = 1,
    groups: int = 1,
    mask: Tensor | None = None,
) -> Tensor:
    """A convolution whose taps are moved by `offset` and, if `mask` is given, weighted by it.

    Args:
        x: [N, C, H, W].
        offset: [N, 2·deformable_groups·kh·kw, Ho, Wo], (down, right) for each tap.
        weight: [Co, C / groups, kh, kw].
        mask: [N, deformable_groups·kh·kw, Ho, Wo].

    Returns:
        [N, Co, Ho, Wo].

    Source: Dai et al. 2017, Zhu et al. 2018 (with a mask).
    """
    kernel = list(weight.shape[2:])
    taps = _deformed(x, offset, mask, kernel, many(stride, 2), many(padding, 2), many(dilation, 2))
    columns = taps.reshape(x.shape[0], groups, -1, taps.shape[-1])
    flat = weight.reshape(groups, weight.shape[0] // groups, -1)
    made = torch.einsum("goc,ngcl->ngol", flat, columns).reshape(x.shape[0], weight.shape[0], *offset.shape[2:])
    return made if bias is None else made + bias[:, None, None]
