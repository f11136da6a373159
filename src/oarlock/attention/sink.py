"""A learnable sink: one more logit per head in the softmax, which has no value.

With the log-sum-exp l of the visible keys and the sink s, L = log(exp(l) + exp(s)) is the log-sum-exp of all, and out
shrinks by exp(l - L). A backward that is given this out and L is right as it is, because P = exp(scores - L) and
dS = P * (dO V^T - rowsum(dO * O) + dL). The sink is one more such key, whose value is 0:
ds = sum over rows of exp(s - L) * (dL - rowsum(dO * O)).

Legend: B batch, S query rows, H query heads.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLIND = float("-inf")
"""The log-sum-exp of a row that sees no key."""


def rescale(out_BSHD: Tensor, lse_BHS: Tensor, sink_H: Tensor) -> Tensor:
    """out * exp(lse - L)."""
    weight_BHS = torch.sigmoid(lse_BHS - sink_H[:, None]).masked_fill(lse_BHS == BLIND, 0.0)
    return (out_BSHD * weight_BHS.mT[..., None]).to(out_BSHD.dtype)


def include(lse_BHS: Tensor, sink_H: Tensor) -> Tensor:
    """L; a row without keys has the sink's logit."""
    return torch.logaddexp(lse_BHS, sink_H[:, None])


def gradient(grad_out: Tensor | None, grad_total: Tensor | None, out: Tensor, lse: Tensor, sink_H: Tensor) -> Tensor:
    """The gradient of the sink, from those of out and L; ``lse`` is without it."""
    weight_BHS = torch.exp(sink_H[:, None] - include(lse, sink_H)).masked_fill(lse == BLIND, 1.0)
    if grad_out is not None:
        # 0 where out is 0 for want of keys, whatever arrives there.
        delta_BHS = (grad_out.to(lse.dtype) * out).sum(-1).mT.masked_fill(lse == BLIND, 0.0)
        grad_total = -delta_BHS if grad_total is None else grad_total - delta_BHS
    assert grad_total is not None
    return (weight_BHS * grad_total).sum((0, 2))
