"""Losses. `label` is torch's `target`; `reduction` is "mean", "sum" or "none"."""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.nn.functional.cross_entropy import reduced
from oarlock.paddle.nn.functional.extents import AT, wide
from oarlock.paddle.nn.functional.norm import pairwise_distance


@api(at=AT)
def l1_loss(input: Tensor, label: Tensor, reduction: str = "mean") -> Tensor:
    """`|input - label|`."""
    return reduced((input - label).abs(), reduction)


@api(at=AT)
def mse_loss(input: Tensor, label: Tensor, reduction: str = "mean") -> Tensor:
    """`(input - label)²`."""
    return reduced((input - label) ** 2, reduction)


@api(at=AT)
def soft_margin_loss(input: Tensor, label: Tensor, reduction: str = "mean") -> Tensor:
    """`log(1 + exp(-label·input))`, label being 1 or -1."""
    return reduced(torch.log1p(torch.exp(-label * input)), reduction)


@api(at=AT)
def multi_label_margin_loss(input: Tensor, label: Tensor, reduction: str = "mean") -> Tensor:
    """`sum max(0, 1 - input[y] + input[i]) / C` over the classes y before the first -1 of `label` and the others i."""
    return F.multilabel_margin_loss(wide(input), label.long(), reduction=reduction).to(input.dtype)


@api(at=AT)
def square_error_cost(input: Tensor, label: Tensor) -> Tensor:
    """`(input - label)²`."""
    return (input - label) ** 2


@api(at=AT)
def smooth_l1_loss(
    input: Tensor, label: Tensor, reduction: str = "mean", delta: float = 1.0, is_huber: bool = True
) -> Tensor:
    """The Huber loss; divided by `delta` (torch's smooth L1) if not `is_huber`."""
    function = F.huber_loss(input, label, reduction=reduction, delta=delta)
    return function if is_huber else function / delta


@api(at=AT)
def binary_cross_entropy(input: Tensor, label: Tensor, weight: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """`-(label·log(input) + (1 - label)·log(1 - input))`. The label has no gradient, as in Paddle."""
    loss = F.binary_cross_entropy(input, label.detach(), reduction="none")
    return reduced(loss if weight is None else loss * weight, reduction)


@api(at=AT, logit="input")
def binary_cross_entropy_with_logits(
    logit: Tensor,
    label: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """`binary_cross_entropy` of `sigmoid(logit)`. Neither the label nor `pos_weight` has a gradient, as in Paddle."""
    label = label.detach()
    positive = label if pos_weight is None else label * pos_weight.detach()
    loss = -(positive * F.logsigmoid(logit) + (1 - label) * F.logsigmoid(-logit))
    return reduced(loss if weight is None else loss * weight, reduction)


@api(at=AT)
def kl_div(input: Tensor, label: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """`label·(log(label) - input)`, `input` being logarithms. The label has no gradient, as in Paddle."""
    label = label.detach()
    if log_target:
        loss = torch.exp(label) * (label - input)
    else:  # a label that is not positive counts 0
        loss = torch.where(label > 0, label * (torch.log(label.clamp(min=torch.finfo(label.dtype).tiny)) - input), 0.0)
    return loss.sum() / input.shape[0] if reduction == "batchmean" else reduced(loss, reduction)


@api(at=AT)
def margin_ranking_loss(
    input: Tensor, other: Tensor, label: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """`max(0, -label·(input - other) + margin)`."""
    return reduced(torch.relu(-label * (input - other) + margin), reduction)


@api(at=AT)
def hinge_embedding_loss(input: Tensor, label: Tensor, margin: float = 1.0, reduction: str = "mean") -> Tensor:
    """`input` where label is 1, `max(0, margin - input)` where it is -1, 0 elsewhere."""
    zero = input.new_zeros(1)
    loss = torch.where(label == 1, input, zero) + torch.where(label == -1, torch.relu(margin - input), zero)
    return reduced(loss, reduction)


@api(at=AT)
def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, label: Tensor, margin: float = 0, reduction: str = "mean"
) -> Tensor:
    """`1 - cos` where label is 1, `max(0, cos - margin)` where it is -1."""
    return F.cosine_embedding_loss(input1, input2, label, margin, reduction=reduction)


@api(at=AT, input="anchor")
def triplet_margin_loss(
    input: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    epsilon: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """`max(0, d(input, positive) - d(input, negative) + margin)`."""
    distance = functools.partial(pairwise_distance, p=p, epsilon=epsilon)
    return _triplet(input, positive, negative, distance, margin, swap, reduction)


def _triplet(
    input: Tensor,
    positive: Tensor,
    negative: Tensor,
    distance: Callable[..., Tensor],
    margin: float,
    swap: bool,
    reduction: str,
) -> Tensor:
    near, far = distance(input, positive), distance(input, negative)
    if swap:
        far = torch.minimum(far, distance(positive, negative))
    return reduced(torch.relu(near - far + margin), reduction)


@api(at=AT, input="anchor")
def triplet_margin_with_distance_loss(
    input: Tensor,
    positive: Tensor,
    negative: Tensor,
    distance_function: Callable[..., Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """`triplet_margin_loss` with a distance of one's own."""
    return _triplet(input, positive, negative, distance_function or pairwise_distance, margin, swap, reduction)


@api(at=AT)
def multi_label_soft_margin_loss(
    input: Tensor, label: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """The binary cross entropy of the classes, averaged over them."""
    return F.multilabel_soft_margin_loss(input, label, weight, reduction=reduction)


@api(at=AT)
def multi_margin_loss(
    input: Tensor,
    label: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`mean(max(0, margin - input[label] + input[i])**p)` over i, without i = label."""
    index = label.long().reshape(-1, 1)
    scale = 1.0 if weight is None else weight[index[:, 0]]
    terms = torch.relu(margin - input.gather(1, index) + input) ** p
    return reduced((terms.mean(1) - margin**p / input.shape[1]) * scale, reduction)


@api(at=AT, variance="var")
def gaussian_nll_loss(
    input: Tensor,
    label: Tensor,
    variance: Tensor,
    full: bool = False,
    epsilon: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """`(log(variance) + (input - label)²/variance) / 2`."""
    return F.gaussian_nll_loss(input, label, variance, full=full, eps=epsilon, reduction=reduction)


@api(at=AT)
def poisson_nll_loss(
    input: Tensor,
    label: Tensor,
    log_input: bool = True,
    full: bool = False,
    epsilon: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """`exp(input) - label·input`, or `input - label·log(input)`."""
    return F.poisson_nll_loss(input, label, log_input, full, eps=epsilon, reduction=reduction)


@api(at=AT)
def log_loss(input: Tensor, label: Tensor, epsilon: float = 1e-4) -> Tensor:
    """`-label·log(input + epsilon) - (1 - label)·log(1 - input + epsilon)`."""
    return -label * torch.log(input + epsilon) - (1 - label) * torch.log(1 - input + epsilon)


@api(at=AT)
def sigmoid_focal_loss(
    logit: Tensor,
    label: Tensor,
    normalizer: Tensor | None = None,
    alpha: float = 0.25,
    gamma: float = 2.0,
    reduction: str = "sum",
) -> Tensor:
    """The focal loss of `sigmoid(logit)`, divided by `normalizer`."""
    bce = F.binary_cross_entropy_with_logits(logit, label.detach(), reduction="none")
    p = torch.sigmoid(logit)
    p_t = p * label + (1 - p) * (1 - label)
    loss = (alpha * label + (1 - alpha) * (1 - label)) * (1 - p_t) ** gamma * bce
    return reduced(loss if normalizer is None else loss / normalizer, reduction)


@api(at=AT)
def dice_loss(input: Tensor, label: Tensor, epsilon: float = 1e-5) -> Tensor:
    """`1 - 2·|input ∩ label| / (|input| + |label| + epsilon)`, averaged over the batch."""
    one = F.one_hot(label.squeeze(-1).long(), input.shape[-1]).to(input.dtype)
    dims = tuple(range(1, input.ndim))
    both, each = (input * one).sum(dims), input.sum(dims) + one.sum(dims)
    return (1 - both * 2 / (each + epsilon)).mean()


@api(at=AT)
def label_smooth(label: Tensor, prior_dist: Tensor | None = None, epsilon: float = 0.1) -> Tensor:
    """`(1 - epsilon)·label + epsilon·prior_dist` (uniform by default)."""
    prior = 1 / label.shape[-1] if prior_dist is None else prior_dist
    return (1 - epsilon) * label + epsilon * prior
