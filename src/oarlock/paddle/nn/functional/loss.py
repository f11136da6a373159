"""Losses. `label` is torch's `target`; `reduction` is "mean", "sum" or "none"."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.paddle.declare import api

AT = "paddle.nn.functional"


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """The mean or sum of a loss, or the loss."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', not {reduction!r}")
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


@api(at=AT)
def cross_entropy(
    input: Tensor,
    label: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    soft_label: bool = False,
    axis: int = -1,
    use_softmax: bool = True,
    label_smoothing: float = 0.0,
) -> Tensor:
    """`-log softmax(input)[label]` along `axis` (the last one, where torch takes the second).

    `label` holds indices, with or without a dimension of size 1 at `axis`, or with `soft_label` probabilities.
    Unreduced, the loss keeps the shape of the label (soft: with a 1 at `axis`).
    """
    log_p = torch.log_softmax(input, axis) if use_softmax else torch.log(input)
    axis = axis % input.ndim
    classes = input.shape[axis]
    if label_smoothing > 0 and not soft_label:
        squeezed = label.squeeze(axis) if label.ndim == input.ndim else label
        label = F.one_hot(squeezed.long(), classes).movedim(-1, axis).to(input.dtype)
        soft_label = True
    if soft_label:
        probability = label * (1 - label_smoothing) + label_smoothing / classes if label_smoothing > 0 else label
        loss = -(probability * log_p).sum(axis, keepdim=True)
        if weight is not None:
            shape = [-1 if d == axis else 1 for d in range(input.ndim)]
            scale = (probability * weight.reshape(shape)).sum(axis, keepdim=True)
            loss = loss * scale
            return loss.sum() / scale.sum() if reduction == "mean" else reduced(loss, reduction)
        return reduced(loss, reduction)
    index = label.long() if label.ndim == input.ndim else label.long().unsqueeze(axis)
    valid = index != ignore_index
    safe = torch.where(valid, index, 0)
    loss = -log_p.gather(axis, safe)
    scale = valid.to(loss.dtype) if weight is None else torch.where(valid, weight[safe], 0.0)
    loss = torch.where(valid, loss * scale, 0.0)
    if reduction == "mean":
        return loss.sum() / scale.sum() if weight is not None else loss.sum() / scale.sum().clamp(min=1)
    return reduced(loss if label.ndim == input.ndim else loss.squeeze(axis), reduction)


@api(at=AT, logits="input")
def softmax_with_cross_entropy(
    logits: Tensor,
    label: Tensor,
    soft_label: bool = False,
    ignore_index: int = -100,
    numeric_stable_mode: bool = True,
    return_softmax: bool = False,
    axis: int = -1,
) -> Any:
    """The unreduced cross entropy with a 1 at `axis`, and the softmax if asked."""
    loss = cross_entropy(logits, label, None, ignore_index, "none", soft_label, axis)
    loss = loss if loss.ndim == logits.ndim else loss.unsqueeze(axis)
    return (loss, torch.softmax(logits, axis)) if return_softmax else loss


@api(at=AT)
def nll_loss(
    input: Tensor, label: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """`-input[label]` over the second dimension."""
    return F.nll_loss(input, label.long(), weight, ignore_index=ignore_index, reduction=reduction)


def _declare(name: str, function: Callable[..., Tensor]) -> None:
    def call(input: Tensor, label: Tensor, reduction: str = "mean") -> Tensor:
        return function(input, label, reduction=reduction)

    call.__name__, call.__doc__ = name, f"`{name}` of `input` against `label`."
    api(at=AT, out=False)(call)


for _name in ("l1_loss", "mse_loss", "soft_margin_loss"):
    _declare(_name, getattr(F, _name))
_declare("multi_label_margin_loss", lambda x, y, reduction: F.multilabel_margin_loss(x, y.long(), reduction=reduction))


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
    """`-(label·log(input) + (1 - label)·log(1 - input))`."""
    return F.binary_cross_entropy(input, label, weight, reduction=reduction)


@api(at=AT, logit="input")
def binary_cross_entropy_with_logits(
    logit: Tensor,
    label: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """`binary_cross_entropy` of `sigmoid(logit)`."""
    return F.binary_cross_entropy_with_logits(logit, label, weight, reduction=reduction, pos_weight=pos_weight)


@api(at=AT)
def kl_div(input: Tensor, label: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """`label·(log(label) - input)`, `input` being logarithms."""
    if reduction == "mean":
        return F.kl_div(input, label, reduction="none", log_target=log_target).mean()
    return F.kl_div(input, label, reduction=reduction, log_target=log_target)


@api(at=AT)
def margin_ranking_loss(
    input: Tensor, other: Tensor, label: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """`max(0, -label·(input - other) + margin)`."""
    return reduced(torch.relu(-label * (input - other) + margin), reduction)


@api(at=AT)
def hinge_embedding_loss(input: Tensor, label: Tensor, margin: float = 1.0, reduction: str = "mean") -> Tensor:
    """`input` where label is 1, `max(0, margin - input)` where it is -1."""
    return F.hinge_embedding_loss(input, label, margin, reduction=reduction)


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
    return F.triplet_margin_loss(
        input, positive, negative, margin=margin, p=p, eps=epsilon, swap=swap, reduction=reduction
    )


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
    return F.triplet_margin_with_distance_loss(
        input, positive, negative, distance_function=distance_function, margin=margin, swap=swap, reduction=reduction
    )


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
    """`mean(max(0, margin - input[label] + input[i])**p)` over i."""
    return F.multi_margin_loss(input, label.long(), p, margin, weight, reduction=reduction)


@api(at=AT)
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
    bce = F.binary_cross_entropy_with_logits(logit, label, reduction="none")
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
def ctc_loss(
    log_probs: Tensor,
    labels: Tensor,
    input_lengths: Tensor,
    label_lengths: Tensor,
    blank: int = 0,
    reduction: str = "mean",
    norm_by_times: bool = False,
    zero_infinity: bool = False,
) -> Tensor:
    """Connectionist temporal classification. The softmax is inside, where torch wants logarithms of probabilities."""
    log_p = torch.log_softmax(log_probs, -1)
    loss = F.ctc_loss(
        log_p,
        labels.long(),
        input_lengths.long(),
        label_lengths.long(),
        blank,
        "none",
        zero_infinity,
    )
    if norm_by_times:
        loss = loss / input_lengths.to(loss.dtype)
    return (loss / label_lengths.to(loss.dtype)).mean() if reduction == "mean" else reduced(loss, reduction)


@api(at=AT)
def label_smooth(label: Tensor, prior_dist: Tensor | None = None, epsilon: float = 0.1) -> Tensor:
    """`(1 - epsilon)·label + epsilon·prior_dist` (uniform by default)."""
    prior = 1 / label.shape[-1] if prior_dist is None else prior_dist
    return (1 - epsilon) * label + epsilon * prior
