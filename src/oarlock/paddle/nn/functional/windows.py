"""Images as columns of windows, and channels moved into space."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import as_ints
from oarlock.paddle.nn.functional.extents import AT, channels_back, channels_first, many


@api(at=AT, compat="kernel_size dilation padding stride", x="", kernel_sizes="", strides="", paddings="", dilations="")
def unfold(x: Tensor, kernel_sizes: Any, strides: Any = 1, paddings: Any = 0, dilations: Any = 1) -> Tensor:
    """The windows of images as columns, [N, C·kh·kw, L]; `paddings` may hold four numbers: top, left, bottom, right."""
    sizes = as_ints(paddings)
    if len(sizes) == 4:
        top, left, bottom, right = sizes
        x, sizes = F.pad(x, (left, right, top, bottom)), [0]
    return F.unfold(x, many(kernel_sizes, 2), many(dilations, 2), many(sizes, 2), many(strides, 2))


@api(at=AT, output_sizes="output_size")
def fold(
    x: Tensor, output_sizes: Any, kernel_sizes: Any, strides: Any = 1, paddings: Any = 0, dilations: Any = 1
) -> Tensor:
    """The sum of columns put back as windows: the transpose of `unfold`."""
    sizes = as_ints(paddings)
    height, width = many(output_sizes, 2)
    if len(sizes) == 4:
        top, left, bottom, right = sizes
        whole = (height + top + bottom, width + left + right)
        made = F.fold(x, whole, many(kernel_sizes, 2), many(dilations, 2), 0, many(strides, 2))
        return made[..., top : top + height, left : left + width]
    return F.fold(x, (height, width), many(kernel_sizes, 2), many(dilations, 2), many(sizes, 2), many(strides, 2))


@api(at=AT)
def pixel_shuffle(x: Tensor, upscale_factor: int, data_format: str = "NCHW") -> Tensor:
    """Channels moved into space: [N, C·r², H, W] to [N, C, H·r, W·r]."""
    first, r = channels_first(x, data_format), upscale_factor
    batch, channels, height, width = first.shape
    parts = first.reshape(batch, channels // r**2, r, r, height, width).permute(0, 1, 4, 2, 5, 3)
    return channels_back(parts.reshape(batch, channels // r**2, height * r, width * r), data_format)


@api(at=AT)
def pixel_unshuffle(x: Tensor, downscale_factor: int, data_format: str = "NCHW") -> Tensor:
    """The inverse of `pixel_shuffle`."""
    first, r = channels_first(x, data_format), downscale_factor
    batch, channels, height, width = first.shape
    parts = first.reshape(batch, channels, height // r, r, width // r, r).permute(0, 1, 3, 5, 2, 4)
    return channels_back(parts.reshape(batch, channels * r**2, height // r, width // r), data_format)


@api(at=AT)
def channel_shuffle(x: Tensor, groups: int, data_format: str = "NCHW") -> Tensor:
    """Channels of groups interleaved."""
    first = channels_first(x, data_format)
    return channels_back(first.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2), data_format)


@api(at=AT)
def temporal_shift(
    x: Tensor, seg_num: int, shift_ratio: float = 0.25, name: str | None = None, data_format: str = "NCHW"
) -> Tensor:
    """The first channels moved one step back in time, the next ones one step ahead."""
    first = channels_first(x, data_format)
    frames = first.unflatten(0, (-1, seg_num))
    a, b = int(first.shape[1] * shift_ratio), int(first.shape[1] * 2 * shift_ratio)
    back = F.pad(frames[:, :-1, :a], (0, 0, 0, 0, 0, 0, 1, 0))
    ahead = F.pad(frames[:, 1:, a:b], (0, 0, 0, 0, 0, 0, 0, 1))
    return channels_back(torch.cat([back, ahead, frames[:, :, b:]], 2).flatten(0, 1), data_format)
