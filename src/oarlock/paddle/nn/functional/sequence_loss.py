"""Losses of unaligned sequences: connectionist temporal classification and transducers."""

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.nn.functional.cross_entropy import reduced
from oarlock.paddle.nn.functional.extents import AT, wide


@api(at=AT, labels="targets", label_lengths="target_lengths")
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
    """Connectionist temporal classification. The softmax is inside, where torch wants logarithms of probabilities.

    `norm_by_times` divides the gradient (not the loss) of a sequence by its length.
    """
    log_p = torch.log_softmax(wide(log_probs), -1)
    lengths = input_lengths.long(), label_lengths.long()
    loss = F.ctc_loss(log_p, labels.long(), *lengths, blank, "none", zero_infinity).to(log_probs.dtype)
    if norm_by_times:
        scaled = loss / input_lengths.to(loss.dtype)
        loss = scaled + (loss - scaled).detach()
    return (loss / label_lengths.to(loss.dtype)).mean() if reduction == "mean" else reduced(loss, reduction)


@api(at=AT)
def rnnt_loss(
    input: Tensor,
    label: Tensor,
    input_lengths: Tensor,
    label_lengths: Tensor,
    blank: int = 0,
    fastemit_lambda: float = 0.001,
    reduction: str = "mean",
) -> Tensor:
    """`-log` of the sum over all alignments of a transducer.

    Args:
        input: [N, T, U + 1, C], logarithms of probabilities.
        label: [N, U].
        input_lengths: [N], frames of each sequence.
        label_lengths: [N], labels of each sequence.
        fastemit_lambda: weight of the additional gradient that favours labels over blanks.

    Returns:
        The mean, the sum, or [N].

    Source: Graves 2012; Yu et al., FastEmit, 2021.
    """
    batch, frames, positions, _ = input.shape
    stay = input[..., blank]
    emit = input[:, :, :-1].gather(3, label.long()[:, None, :, None].expand(-1, frames, -1, 1))[..., 0]
    # FastEmit: the gradient through the labels grows, the value does not.
    emit = emit + fastemit_lambda * (emit - emit.detach())
    alpha = torch.cat([emit.new_zeros(batch, 1), emit[:, 0].cumsum(1)], 1)
    rows = [alpha]
    for t in range(1, frames):
        column, below = [], None
        arrived = alpha + stay[:, t - 1]
        for position in range(positions):
            here = arrived[:, position]
            if below is not None:
                here = torch.logaddexp(here, below + emit[:, t, position - 1])
            column.append(here)
            below = here
        alpha = torch.stack(column, 1)
        rows.append(alpha)
    table = torch.stack(rows, 1) + stay
    last, end = input_lengths.long() - 1, label_lengths.long()
    loss = -table[torch.arange(batch, device=input.device), last, end]
    return loss.sum() / batch if reduction == "mean" else reduced(loss, reduction)
