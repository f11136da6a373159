"""Boxes of detectors: left, top, right, bottom in the last dimension."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api

AT = "paddle.vision.ops"


def _suppressed(boxes: Tensor, threshold: float) -> Tensor:
    """Indices of the boxes, in their order, that overlap no kept one before them by more than `threshold`."""
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    corner = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    shared = (torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:]) - corner).clamp(min=0).prod(-1)
    overlaps = (shared / (area[:, None] + area - shared) > threshold).cpu()
    kept: list[int] = []
    gone = torch.zeros(len(boxes), dtype=torch.bool)
    for i in range(len(boxes)):
        if not gone[i]:
            kept.append(i)
            gone |= overlaps[i]
    return torch.tensor(kept, dtype=torch.int64, device=boxes.device)


@api(at=AT, out=False)
def nms(
    boxes: Tensor,
    iou_threshold: float = 0.3,
    scores: Tensor | None = None,
    category_idxs: Tensor | None = None,
    categories: Sequence[int] | None = None,
    top_k: int | None = None,
) -> Tensor:
    """Indices of the boxes that no better one overlaps by more than `iou_threshold`, best first.

    Args:
        boxes: [N, 4].
        scores: [N]; None: the boxes are ordered already.
        category_idxs: [N]; only boxes of one category compete.
        categories: the categories to look at.
        top_k: how many to keep at most.
    """
    if scores is None:
        return _suppressed(boxes, iou_threshold)
    if category_idxs is None:
        order = torch.argsort(scores, descending=True, stable=True)
        return order[_suppressed(boxes[order], iou_threshold)]
    if categories is None:
        raise ValueError("category_idxs needs the list of categories")
    kept = []
    for category in categories:
        mine = torch.nonzero(category_idxs == category)[:, 0]
        mine = mine[torch.argsort(scores[mine], descending=True, stable=True)]
        kept.append(mine[_suppressed(boxes[mine], iou_threshold)])
    chosen = torch.cat(kept).sort().values if kept else torch.zeros(0, dtype=torch.int64, device=boxes.device)
    return chosen[torch.argsort(scores[chosen], descending=True, stable=True)][:top_k]


def _sides(boxes: Tensor, extra: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Width, height and centre."""
    left, top, right, bottom = boxes.unbind(-1)
    width, height = right - left + extra, bottom - top + extra
    return width, height, left + width / 2, top + height / 2


@api(at=AT)
def box_coder(
    prior_box: Tensor,
    prior_box_var: Tensor | Sequence[float] | None,
    target_box: Tensor,
    code_type: str = "encode_center_size",
    box_normalized: bool = True,
    axis: int = 0,
) -> Tensor:
    """Boxes as shifts and logarithmic scales of prior boxes, divided by their variances, and back.

    Args:
        prior_box: [M, 4].
        prior_box_var: [M, 4], four numbers for all, or None for ones.
        target_box: [N, 4] to encode; [N, M, 4] to decode, or [M, N, 4] with `axis` 1.
        code_type: "encode_center_size" or "decode_center_size".
        box_normalized: False: boxes are in pixels, and their ends belong to them.

    Returns:
        [N, M, 4] encoded, or boxes in the shape of `target_box`.
    """
    extra = 0.0 if box_normalized else 1.0
    scales = [1.0] * 4 if prior_box_var is None else prior_box_var
    variance = torch.as_tensor(scales, dtype=prior_box.dtype, device=prior_box.device)
    width, height, x, y = _sides(prior_box, extra)
    if code_type == "encode_center_size":
        w, h, _, _ = (side[:, None] for side in _sides(target_box, extra))
        middle = (target_box[:, :2] + target_box[:, 2:]) / 2
        parts = [(middle[:, :1] - x) / width, (middle[:, 1:] - y) / height]
        parts += [torch.log((w / width).abs()), torch.log((h / height).abs())]
        return torch.stack(parts, -1) / variance
    if code_type != "decode_center_size":
        raise ValueError(f"code_type must be 'encode_center_size' or 'decode_center_size', not {code_type!r}")
    if axis == 1:
        width, height, x, y = (side[:, None] for side in (width, height, x, y))
        variance = variance[:, None] if variance.ndim == 2 else variance
    dx, dy, dw, dh = (variance * target_box).unbind(-1)
    x, y, w, h = dx * width + x, dy * height + y, torch.exp(dw) * width, torch.exp(dh) * height
    return torch.stack([x - w / 2, y - h / 2, x + w / 2 - extra, y + h / 2 - extra], -1)


@api(at=AT, out=False)
def prior_box(
    input: Tensor,
    image: Tensor,
    min_sizes: Any,
    max_sizes: Any = None,
    aspect_ratios: Any = (1.0,),
    variance: Any = (0.1, 0.1, 0.2, 0.2),
    flip: bool = False,
    clip: bool = False,
    steps: Any = (0.0, 0.0),
    offset: float = 0.5,
    min_max_aspect_ratios_order: bool = False,
) -> tuple[Tensor, Tensor]:
    """The prior boxes of each pixel of a feature map.

    Args:
        input: [N, C, H, W], the features.
        image: [N, C, height, width].
        min_sizes: sides of the square boxes, in pixels of the image.
        max_sizes: for each, the side of a square as large as the geometric mean with it.
        aspect_ratios: width / height of further boxes; also their inverses if `flip`.
        steps: (across, down) between the boxes; 0: as the image divides.
        min_max_aspect_ratios_order: the squares come first.

    Returns:
        (boxes relative to the image, variances), each [H, W, boxes per pixel, 4].

    Source: Liu et al., SSD, 2016.
    """
    as_list = lambda v: list(v) if isinstance(v, (list, tuple)) else [v]  # noqa: E731
    smallest, largest = as_list(min_sizes), as_list(max_sizes) if max_sizes else []
    ratios = [1.0]
    for ratio in as_list(aspect_ratios):
        if all(abs(ratio - known) > 1e-6 for known in ratios):
            ratios += [float(ratio), 1.0 / ratio] if flip else [float(ratio)]
    shapes = []
    for i, size in enumerate(smallest):
        square = [(math.sqrt(size * largest[i]),) * 2] if largest else []
        bent = [(size * math.sqrt(r), size / math.sqrt(r)) for r in ratios]
        shapes += [bent[0], *square, *bent[1:]] if min_max_aspect_ratios_order else [*bent, *square]
    height, width = input.shape[2:]
    tall, wide = image.shape[2:]
    across, down = (float(step) for step in as_list(steps))
    across, down = across or wide / width, down or tall / height
    options = {"dtype": input.dtype, "device": input.device}
    x = ((torch.arange(width, **options) + offset) * across)[None, :, None].expand(height, width, len(shapes))
    y = ((torch.arange(height, **options) + offset) * down)[:, None, None].expand(height, width, len(shapes))
    w, h = torch.tensor(shapes, **options).unbind(1)
    boxes = torch.stack([(x - w / 2) / wide, (y - h / 2) / tall, (x + w / 2) / wide, (y + h / 2) / tall], -1)
    boxes = boxes.clamp(0, 1) if clip else boxes
    return boxes, torch.tensor(as_list(variance), **options).expand_as(boxes).clone()


@api(at=AT, out=False)
def yolo_box(
    x: Tensor,
    img_size: Tensor,
    anchors: Sequence[int],
    class_num: int,
    conf_thresh: float,
    downsample_ratio: int,
    clip_bbox: bool = True,
    name: str | None = None,
    scale_x_y: float = 1.0,
    iou_aware: bool = False,
    iou_aware_factor: float = 0.5,
) -> tuple[Tensor, Tensor]:
    """Boxes and class scores of a YOLOv3 head; both are 0 where the confidence is below `conf_thresh`.

    Args:
        x: [N, A·(5 + class_num), H, W], or A more channels first with `iou_aware`.
        img_size: int32 [N, 2], height and width of the images.
        anchors: A pairs of width and height.
        downsample_ratio: pixels of the network's input per cell.

    Returns:
        (boxes [N, A·H·W, 4] in pixels, scores [N, A·H·W, class_num]).

    Source: Redmon and Farhadi, YOLOv3, 2018.
    """
    count = len(anchors) // 2
    batch, _, height, width = x.shape
    overlaps, x = x[:, :count], x[:, count:] if iou_aware else x
    parts = x.reshape(batch, count, 5 + class_num, height, width)
    options = {"dtype": x.dtype, "device": x.device}
    sizes = torch.tensor(list(anchors), **options).reshape(count, 2, 1, 1)
    tall, wide = (img_size[:, i].to(x.dtype).reshape(-1, 1, 1, 1) for i in (0, 1))
    shift = -0.5 * (scale_x_y - 1)
    column = torch.arange(width, **options)
    row = torch.arange(height, **options)[:, None]
    middle_x = (column + torch.sigmoid(parts[:, :, 0]) * scale_x_y + shift) * wide / width
    middle_y = (row + torch.sigmoid(parts[:, :, 1]) * scale_x_y + shift) * tall / height
    w = torch.exp(parts[:, :, 2]) * sizes[:, 0] * wide / (downsample_ratio * width)
    h = torch.exp(parts[:, :, 3]) * sizes[:, 1] * tall / (downsample_ratio * height)
    confidence = torch.sigmoid(parts[:, :, 4])
    if iou_aware:
        confidence = confidence ** (1 - iou_aware_factor) * torch.sigmoid(overlaps) ** iou_aware_factor
    left, top, right, bottom = middle_x - w / 2, middle_y - h / 2, middle_x + w / 2, middle_y + h / 2
    if clip_bbox:
        left, top = left.clamp(min=0), top.clamp(min=0)
        right, bottom = torch.minimum(right, wide - 1), torch.minimum(bottom, tall - 1)
    kept = confidence >= conf_thresh
    boxes = torch.stack([left, top, right, bottom], -1) * kept.unsqueeze(-1)
    scores = torch.sigmoid(parts[:, :, 5:]) * (confidence * kept).unsqueeze(2)
    return boxes.reshape(batch, -1, 4), scores.movedim(2, -1).reshape(batch, -1, class_num)
