"""Choosing among the proposals of detectors."""

from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api

AT = "paddle.vision.ops"


@api(at=AT, out=False)
def distribute_fpn_proposals(
    fpn_rois: Tensor,
    min_level: int,
    max_level: int,
    refer_level: int,
    refer_scale: int,
    pixel_offset: bool = False,
    rois_num: Tensor | None = None,
) -> tuple[list[Tensor], Tensor, list[Tensor] | None]:
    """Regions by the level of a feature pyramid, `floor(log2(sqrt(area) / refer_scale) + refer_level)`.

    Args:
        fpn_rois: [R, 4], left, top, right, bottom.
        pixel_offset: the ends of a box belong to it.
        rois_num: int32 [N], regions of each image.

    Returns:
        (the regions of each level, int32 [R, 1] where each region stands among them, and for each level int32 [N] the
        regions of each image, or None).

    Source: Lin et al., Feature Pyramid Networks, 2017.
    """
    extra = 1.0 if pixel_offset else 0.0
    width, height = (fpn_rois[:, 2 + i] - fpn_rois[:, i] + extra for i in (0, 1))
    right = (fpn_rois[:, 2] >= fpn_rois[:, 0]) & (fpn_rois[:, 3] >= fpn_rois[:, 1])
    side = torch.where(right, width * height, 0.0).sqrt()
    level = torch.floor(torch.log2(side / refer_scale + 1e-8) + refer_level).clamp(min_level, max_level).long()
    order = torch.argsort(level, stable=True)
    parts = [fpn_rois[level == at] for at in range(min_level, max_level + 1)]
    restore = torch.empty_like(order)
    restore[order] = torch.arange(len(order), device=order.device)
    counts = None
    if rois_num is not None:
        image = torch.arange(len(rois_num), device=order.device).repeat_interleave(rois_num.long())
        counts = [
            torch.bincount(image[level == at], minlength=len(rois_num)).int() for at in range(min_level, max_level + 1)
        ]
    return parts, restore.int()[:, None], counts


def _overlaps(boxes: Tensor, extra: float) -> Tensor:
    """Intersection over union of all pairs."""
    area = ((boxes[:, 2] - boxes[:, 0] + extra) * (boxes[:, 3] - boxes[:, 1] + extra)).clamp(min=0)
    corner = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    sides = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:]) - corner
    shared = torch.where((sides >= 0).all(-1), (sides + extra).prod(-1), 0.0)
    return shared / (area[:, None] + area - shared)


@api(at=AT, out=False)
def matrix_nms(
    bboxes: Tensor,
    scores: Tensor,
    score_threshold: float,
    post_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    use_gaussian: bool = False,
    gaussian_sigma: float = 2.0,
    background_label: int = 0,
    normalized: bool = True,
    return_index: bool = False,
    return_rois_num: bool = True,
) -> tuple[Tensor, Any, Any]:
    """Boxes whose scores fall with their overlap with better ones, best first.

    Args:
        bboxes: [N, M, 4].
        scores: [N, C, M].
        score_threshold: scores must exceed it before, `post_threshold` after.
        nms_top_k: boxes of a class at most, before; -1: all.
        keep_top_k: boxes of an image at most, after; -1: all.
        background_label: the class to leave out.
        normalized: False: boxes are in pixels, and their ends belong to them.

    Returns:
        (rows of class, score and box [K, 6], int32 boxes of each image or None, int32 indices into the N·M boxes [K, 1]
        or None).

    Source: Wang et al., SOLOv2, 2020.
    """
    rows, places, counts = [], [], []
    for image, (boxes, chances) in enumerate(zip(bboxes, scores, strict=True)):
        found, where = [], []
        for label, chance in enumerate(chances):
            if label == background_label:
                continue
            at = torch.nonzero(chance > score_threshold)[:, 0]
            at = at[torch.argsort(chance[at], descending=True, stable=True)]
            at = at if nms_top_k < 0 else at[:nms_top_k]
            if not len(at):
                continue
            overlap = _overlaps(boxes[at], 0.0 if normalized else 1.0).triu(1)  # of each with the better ones before
            worst = overlap.amax(0)[:, None]
            if use_gaussian:
                decay = torch.exp((worst**2 - overlap**2) * gaussian_sigma)
            else:
                decay = (1 - overlap) / (1 - worst)
            before = torch.ones_like(decay, dtype=torch.bool).triu(1)
            score = chance[at] * torch.where(before, decay, 1.0).amin(0)
            kept = score > post_threshold
            head = torch.stack([torch.full_like(score, label), score], 1)
            found.append(torch.cat([head, boxes[at]], 1)[kept])
            where.append(at[kept] + image * bboxes.shape[1])
        part = torch.cat(found) if found else bboxes.new_zeros(0, 6)
        index = torch.cat(where) if where else torch.zeros(0, dtype=torch.int64, device=bboxes.device)
        order = torch.argsort(part[:, 1], descending=True, stable=True)
        order = order if keep_top_k < 0 else order[:keep_top_k]
        rows.append(part[order])
        places.append(index[order])
        counts.append(len(order))
    places_of = torch.cat(places).int()[:, None] if return_index else None
    numbers = torch.tensor(counts, dtype=torch.int32, device=bboxes.device) if return_rois_num else None
    return torch.cat(rows), numbers, places_of
