"""Convolutions whose taps move."""

from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.nn.functional.extents import many

AT = "paddle.vision.ops"


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
    each = channels // groups
    images = x.reshape(batch, groups, each, height * width)
    top, left = row.floor(), column.floor()
    total: Any = 0.0
    for down in (0, 1):
        for right in (0, 1):
            r, c = top + down, left + right
            inside = (r >= 0) & (r < height) & (c >= 0) & (c < width)
            share = (1 - (row - r).abs()) * (1 - (column - c).abs()) * inside
            index = (r.clamp(0, height - 1) * width + c.clamp(0, width - 1)).long()
            picked = images.gather(3, index.flatten(2)[:, :, None].expand(-1, -1, each, -1))
            total = total + picked * share.flatten(2)[:, :, None]
    if mask is not None:
        total = total * mask.reshape(batch, groups, 1, taps * out_h * out_w)
    return total.reshape(batch, channels, taps, out_h * out_w)


@api(at=AT)
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
    deep = weight.shape[1:].numel()
    columns = taps.reshape(x.shape[0], groups, deep, taps.shape[-1])
    flat = weight.reshape(groups, weight.shape[0] // groups, deep)
    made = torch.einsum("goc,ngcl->ngol", flat, columns).reshape(x.shape[0], weight.shape[0], *offset.shape[2:])
    return made if bias is None else made + bias[:, None, None]
