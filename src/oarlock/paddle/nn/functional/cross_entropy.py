"""Cross entropies: of indices or probabilities, of logarithms, with margins, over adaptive and hierarchical classes."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.nn.functional.extents import AT


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
    Probabilities have no gradient, as in Paddle. Unreduced, the loss keeps the shape of the label (soft: with a 1 at
    `axis`). The mean counts ignored labels if `ignore_index` is negative and there is no weight, as Paddle's does and
    torch's does not.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', not {reduction!r}")
    if (
        input.ndim == 2
        and label.dtype is torch.int64
        and label.numel() == len(input)
        and weight is None
        and label_smoothing == 0
        and use_softmax
        and not soft_label
        and axis in (-1, 1)
        and ignore_index < 0
        and reduction != "none"
        and input.dtype in (torch.float32, torch.float64)
    ):  # the common case, in torch's fused operation; its mean leaves ignored labels out
        loss = F.cross_entropy(input, label.reshape(-1), ignore_index=ignore_index, reduction="sum")
        return loss / len(input) if reduction == "mean" else loss
    log_p = torch.log_softmax(input, axis) if use_softmax else torch.log(input)
    axis = axis % input.ndim
    classes = input.shape[axis]
    valid = None
    if label_smoothing > 0 and label.shape == input.shape:
        soft_label = True
    if label_smoothing > 0 and not soft_label:
        squeezed = (label.squeeze(axis) if label.ndim == input.ndim else label).long()
        valid = squeezed != ignore_index
        label = F.one_hot(torch.where(valid, squeezed, 0), classes).movedim(-1, axis).to(input.dtype)
        valid, soft_label = valid.unsqueeze(axis).to(input.dtype), True
    if soft_label:
        label = label * (1 - label_smoothing) + label_smoothing / classes if label_smoothing > 0 else label
        loss = -(label.detach() * log_p).sum(axis, keepdim=True)
        scale = None if weight is None else (label.movedim(axis, -1) @ weight).unsqueeze(axis)
        loss = loss if scale is None else loss * scale
        counted, keep = scale, True
        if valid is not None:
            loss = loss * valid
            counted = valid if scale is None else scale * valid
            counted = None if weight is None and ignore_index < 0 else counted
    else:
        keep = label.ndim == input.ndim
        index = label.long() if keep else label.long().unsqueeze(axis)
        valid = index != ignore_index
        safe = torch.where(valid, index, 0)
        loss = torch.where(valid, -log_p.gather(axis, safe), 0.0)
        counted = valid.to(loss.dtype)
        if weight is not None:
            counted = counted * weight[safe]
            loss = loss * counted
        elif ignore_index < 0:
            counted = None
    if reduction == "none":
        return loss if keep else loss.squeeze(axis)
    if reduction == "sum":
        return loss.sum()
    if counted is None or not loss.numel():
        return loss.mean()
    total = counted.sum()
    return loss.sum() / (total + (total == 0))


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
    weight = None if weight is None else weight.detach()
    index = label.long()
    loss = F.nll_loss(input, index, weight, ignore_index=ignore_index, reduction="none")
    if reduction != "mean":
        return reduced(loss, reduction)
    valid = index != ignore_index
    counted = valid.to(loss.dtype) if weight is None else torch.where(valid, weight[torch.where(valid, index, 0)], 0.0)
    total = counted.sum()
    return loss.sum() / (total + (total == 0))


@api(at=AT, logits="input")
def margin_cross_entropy(
    logits: Tensor,
    label: Tensor,
    margin1: float = 1.0,
    margin2: float = 0.5,
    margin3: float = 0.0,
    scale: float = 64.0,
    group: Any = None,
    return_softmax: bool = False,
    reduction: str | None = "mean",
) -> Any:
    """The cross entropy of `scale·(cos(margin1·θ + margin2) - margin3)` for the class of the label, `scale·cos θ` else.

    Args:
        logits: [N, C], cosines of the angles θ.
        label: [N] or [N, 1].
        group: None or False; the classes of this process are all there are.
        reduction: "mean", "sum", or None for the losses [N, 1].

    Returns:
        The loss, with the softmax [N, C] if asked.

    Source: Deng et al., ArcFace, 2019.
    """
    if group not in (None, False):
        raise ValueError("margin_cross_entropy works on the classes of one process; pass group=None")
    index = label.long().reshape(-1, 1)
    chosen = logits.gather(1, index)
    moved = torch.cos(margin1 * torch.acos(chosen) + margin2) - margin3
    log_p = torch.log_softmax(scale * logits.scatter(1, index, moved), -1)
    loss = reduced(-log_p.gather(1, index), reduction or "none")
    return (loss, log_p.exp()) if return_softmax else loss


@api(at=AT)
def npair_loss(anchor: Tensor, positive: Tensor, labels: Tensor, l2_reg: float = 0.002) -> Tensor:
    """The cross entropy of `anchor·positiveᵀ` against equal labels, plus `l2_reg/4` times the mean squared lengths."""
    same = (labels.reshape(-1, 1) == labels.reshape(1, -1)).to(anchor.dtype)
    target = same / same.sum(1, keepdim=True)
    squares = anchor.square().sum(1).mean() + positive.square().sum(1).mean()
    losses = -(target * torch.log_softmax(anchor @ positive.T, -1)).sum(1, keepdim=True)
    return squares * 0.25 * l2_reg + (target * losses).sum(0).mean()


@api(at=AT)
def adaptive_log_softmax_with_loss(
    input: Tensor,
    label: Tensor,
    head_weight: Tensor,
    tail_weights: Sequence[Sequence[Tensor]],
    cutoffs: Sequence[int],
    head_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The log-probability of each label under clusters of classes, and the mean loss.

    Args:
        input: [N, D], or [D].
        label: [N], or a number.
        head_weight: [D, cutoffs[0] + clusters]: the frequent classes, then one column per cluster.
        tail_weights: for each cluster a projection [D, d] and the weight [d, classes of the cluster].
        cutoffs: where clusters begin, and the number of classes.

    Source: Grave et al. 2017.
    """
    rows, index = (input, label.long()) if label.ndim else (input[None], label.long()[None])
    bounds = [int(c) for c in cutoffs]
    if index.numel() and not (int(index.min()) >= 0 and int(index.max()) < bounds[-1]):
        raise ValueError(f"labels must lie in [0, {bounds[-1]}), not in [{int(index.min())}, {int(index.max())}]")
    head = rows @ head_weight if head_bias is None else rows @ head_weight + head_bias
    log_head = torch.log_softmax(head, 1)
    out, column = rows.new_zeros(len(index)), index.clone()
    for i, (project, weight) in enumerate(tail_weights):
        here = torch.nonzero((index >= bounds[i]) & (index < bounds[i + 1]))[:, 0]
        column = column.index_fill(0, here, bounds[0] + i)
        log_tail = torch.log_softmax(rows[here] @ project @ weight, 1)
        out = out.index_add(0, here, log_tail.gather(1, index[here, None] - bounds[i])[:, 0])
    out = out + log_head.gather(1, column[:, None])[:, 0]
    return (out if label.ndim else out[0]), -out.mean()


def _tree_path(label: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """The inner nodes from leaf to root of the default binary tree, -1 after the end, and the turns taken."""
    code = label + num_classes
    bits = torch.arange(int(2 * num_classes - 1).bit_length() - 1, device=label.device)
    nodes = (code[:, None] >> (bits + 1)) - 1
    return nodes, (code[:, None] >> bits) & 1


@api(at=AT)
def hsigmoid_loss(
    input: Tensor,
    label: Tensor,
    num_classes: int,
    weight: Tensor,
    bias: Tensor | None = None,
    path_table: Tensor | None = None,
    path_code: Tensor | None = None,
    is_sparse: bool = False,
) -> Tensor:
    """`sum log(1 + exp(z)) - turn·z` over the nodes of a label's path in a binary tree.

    `z = weight[node]·input + bias[node]`.

    Args:
        input: [N, D].
        label: [N] or [N, 1].
        weight: [nodes, D]; `num_classes - 1` of them in the default tree.
        bias: [nodes] or [nodes, 1].
        path_table: [N, L], the nodes from leaf to root, negative after the end; the default tree if None.
        path_code: [N, L], 1 for the right turn.

    Returns:
        [N, 1]. Every node that is missing up to the longest path of the batch counts log 2, as in Paddle.
    """
    if path_table is None or path_code is None:
        nodes, turns = _tree_path(label.long().reshape(-1), num_classes)
    else:
        nodes, turns = path_table.long(), path_code.long()
    there = (nodes >= 0).cummin(1).values
    node = nodes.clamp(min=0)
    z = torch.einsum("nd,nld->nl", input, weight[node])
    z = z if bias is None else z + bias.reshape(-1)[node]
    z = torch.where(there, z.clamp(-40.0, 40.0), 0.0)
    return (torch.log1p(torch.exp(z)) - turns * there * z).sum(1, keepdim=True)


@api(at=AT, out=False)
def class_center_sample(label: Tensor, num_classes: int, num_samples: int, group: Any = None) -> tuple[Tensor, Tensor]:
    """The classes of the labels, sorted, then random others, `num_samples` in all; and the labels as places among them.

    Args:
        label: [N].
        group: None or False; the classes of this process are all there are.

    Returns:
        (places [N], classes [max(num_samples, classes of the labels)]).
    """
    if group not in (None, False):
        raise ValueError("class_center_sample works on the classes of one process; pass group=None")
    positive = torch.unique(label)
    others = torch.ones(num_classes, dtype=torch.bool, device=label.device)
    others[positive.long()] = False
    negative = torch.nonzero(others)[:, 0].to(label.dtype)
    missing = max(num_samples - len(positive), 0)
    drawn = negative[torch.randperm(len(negative), device=label.device)[:missing]]
    return torch.searchsorted(positive, label).to(label.dtype), torch.cat([positive, drawn])
