"""Features of regions of images: R regions, C channels, H x W images, P x Q bins."""

import math
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.nn.functional.extents import many

AT = "paddle.vision.ops"


def _images(boxes_num: Tensor) -> list[int]:
    """The image of each region."""
    return [image for image, count in enumerate(boxes_num.tolist()) for _ in range(count)]


def _between(plane: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """[C, len(rows), len(columns)] bilinear values of [C, H, W]; 0 more than a pixel outside."""
    height, width = plane.shape[1:]

    def ends(at: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        inside = (at >= -1) & (at <= size)
        at = at.clamp(0, size - 1)
        low = at.floor().long().clamp(max=size - 1)
        return low, (low + 1).clamp(max=size - 1), at - low, inside

    top, bottom, down, in_rows = ends(rows, height)
    left, right, across, in_columns = ends(columns, width)
    down = down[:, None]
    upper = plane[:, top][:, :, left] * (1 - across) + plane[:, top][:, :, right] * across
    lower = plane[:, bottom][:, :, left] * (1 - across) + plane[:, bottom][:, :, right] * across
    return (upper * (1 - down) + lower * down) * (in_rows[:, None] & in_columns)


@api(at=AT)
def roi_align(
    x: Tensor,
    boxes: Tensor,
    boxes_num: Tensor,
    output_size: Any,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = True,
) -> Tensor:
    """Means of bilinear samples in each bin of each region.

    Args:
        x: [N, C, H, W].
        boxes: [R, 4], left, top, right, bottom.
        boxes_num: int32 [N], regions of each image.
        output_size: (P, Q), or one number for both.
        spatial_scale: of `x` to the coordinates of the boxes.
        sampling_ratio: samples per side of a bin; not positive: as many as it has pixels.
        aligned: move the boxes by half a pixel.

    Returns:
        [R, C, P, Q].

    Source: He et al., Mask R-CNN, 2017.
    """
    high, wide = many(output_size, 2)
    made = []
    for image, box in zip(_images(boxes_num), boxes.detach(), strict=True):
        left, top, right, bottom = (box * spatial_scale - (0.5 if aligned else 0.0)).tolist()
        width, height = right - left, bottom - top
        if not aligned:
            width, height = max(width, 1.0), max(height, 1.0)
        per_row = sampling_ratio if sampling_ratio > 0 else math.ceil(height / high)
        per_column = sampling_ratio if sampling_ratio > 0 else math.ceil(width / wide)
        options = {"dtype": x.dtype, "device": x.device}
        rows = top + (torch.arange(high * per_row, **options) + 0.5) * height / high / max(per_row, 1)
        columns = left + (torch.arange(wide * per_column, **options) + 0.5) * width / wide / max(per_column, 1)
        if not per_row or not per_column:
            made.append(x[image, :, :0, :1].sum(1, keepdim=True).expand(-1, high, wide))  # zeros with a gradient
            continue
        samples = _between(x[image], rows, columns)
        made.append(samples.reshape(-1, high, per_row, wide, per_column).mean((2, 4)))
    return torch.stack(made) if made else x.new_zeros(0, x.shape[1], high, wide)


def _round(value: float) -> int:
    """Halves away from zero."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


def _bins(start: float, extent: float, count: int, limit: int) -> list[tuple[int, int]]:
    size = extent / count
    ends = [(math.floor(i * size + start), math.ceil((i + 1) * size + start)) for i in range(count)]
    return [(min(max(a, 0), limit), min(max(b, 0), limit)) for a, b in ends]


@api(at=AT)
def roi_pool(x: Tensor, boxes: Tensor, boxes_num: Tensor, output_size: Any, spatial_scale: float = 1.0) -> Tensor:
    """The largest value in each bin of each region, 0 in an empty one; the arguments are those of `roi_align`.

    Returns:
        [R, C, P, Q].

    Source: Girshick, Fast R-CNN, 2015.
    """
    high, wide = many(output_size, 2)
    made = []
    for image, box in zip(_images(boxes_num), boxes.detach(), strict=True):
        left, top, right, bottom = (_round(n) for n in (box * spatial_scale).tolist())
        rows = _bins(0, max(bottom - top + 1, 1), high, 1 << 30)
        columns = _bins(0, max(right - left + 1, 1), wide, 1 << 30)
        cells = []
        for a, b in rows:
            for c, d in columns:
                part = x[image, :, max(a + top, 0) : max(b + top, 0), max(c + left, 0) : max(d + left, 0)]
                cells.append(part.amax((1, 2)) if part.shape[1] and part.shape[2] else part.sum((1, 2)))
        made.append(torch.stack(cells, 1).reshape(-1, high, wide))
    return torch.stack(made) if made else x.new_zeros(0, x.shape[1], high, wide)


@api(at=AT)
def psroi_pool(x: Tensor, boxes: Tensor, boxes_num: Tensor, output_size: Any, spatial_scale: float = 1.0) -> Tensor:
    """The mean in each bin of each region, over the channels that belong to the bin.

    Args:
        x: [N, C·P·Q, H, W].

    Returns:
        [R, C, P, Q].

    Source: Dai et al., R-FCN, 2016.
    """
    high, wide = many(output_size, 2)
    channels = x.shape[1] // (high * wide)
    made = []
    for image, box in zip(_images(boxes_num), boxes.detach(), strict=True):
        left, top, right, bottom = (_round(n) for n in box.tolist())
        y, h = top * spatial_scale, max((bottom + 1 - top) * spatial_scale, 0.1)
        z, w = left * spatial_scale, max((right + 1 - left) * spatial_scale, 0.1)
        planes = x[image].reshape(channels, high * wide, *x.shape[2:])
        cells = []
        for i, (a, b) in enumerate(_bins(y, h, high, x.shape[2])):
            for j, (c, d) in enumerate(_bins(z, w, wide, x.shape[3])):
                part = planes[:, i * wide + j, a:b, c:d]
                cells.append(part.mean((1, 2)) if part.numel() else part.sum((1, 2)))
        made.append(torch.stack(cells, 1).reshape(channels, high, wide))
    return torch.stack(made) if made else x.new_zeros(0, channels, high, wide)
