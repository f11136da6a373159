"""Attention over parts of the keys, put together by their log-sum-exp in float32 (float64 for float64 inputs).

With out_s and l_s of each part and the sink's logit s, L = log(sum_s exp(l_s) + exp(s)), w_s = exp(l_s - L) and
out = sum_s w_s out_s. Backwards, d out_s = w_s d out, d l_s = w_s (dL + d out . (out_s - out)) and
d s = sum over rows of exp(s - L) (dL - d out . out): the sink is a part whose out is 0, and counts once.

Legend: B batch, S query rows, H query heads, D head dim of the values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Part = tuple[Tensor, Tensor]
"""out [B, S, H, D] and lse [B, H, S] of some keys."""


def merge(parts: Sequence[Part], sink_H: Tensor | None) -> Part:
    """out in the dtype of the parts and L of all keys; a row without keys has out 0 and L -inf (or the sink)."""
    lse_BHS = _total(parts, sink_H)
    first_BSHD, first_BHS = parts[0]
    if len(parts) == 1 and sink_H is None:
        return first_BSHD, lse_BHS
    out_BSHD = first_BSHD * _weight(first_BHS, lse_BHS)  # a new tensor, in the dtype of lse
    for part_BSHD, part_BHS in parts[1:]:
        out_BSHD.addcmul_(part_BSHD, _weight(part_BHS, lse_BHS))
    return out_BSHD.to(first_BSHD.dtype), lse_BHS


def _total(parts: Sequence[Part], sink_H: Tensor | None) -> Tensor:
    """L."""
    lse_BHS = parts[0][1]
    for _, other in parts[1:]:
        lse_BHS = torch.logaddexp(lse_BHS, other)
    return lse_BHS if sink_H is None else torch.logaddexp(lse_BHS, sink_H.to(lse_BHS.dtype)[:, None])


def part_gradients(
    grad_out: Tensor | None, grad_lse: Tensor | None, parts: Sequence[Part], sink_H: Tensor | None
) -> tuple[list[Part], Tensor | None]:
    """Gradients of the out and lse of each part, and of the sink."""
    lse_BHS = _total(parts, sink_H)
    if grad_out is None:
        grad_out = torch.zeros_like(parts[0][0])
    weights = [_weight(lse, lse_BHS) for _, lse in parts]
    dots = [_dot(grad_out, out, lse_BHS.dtype) for out, _ in parts]
    of_lse_BHS = torch.zeros_like(lse_BHS) if grad_lse is None else grad_lse
    for weight, dot_BHS in zip(weights, dots, strict=True):
        of_lse_BHS = of_lse_BHS - weight[..., 0].mT * dot_BHS
    gradients = [
        ((weight * grad_out).to(grad_out.dtype), weight[..., 0].mT * (of_lse_BHS + dot_BHS))
        for weight, dot_BHS in zip(weights, dots, strict=True)
    ]
    if sink_H is None:
        return gradients, None
    is_blind = lse_BHS == float("-inf")  # no key, and a sink of -inf
    weight_BHS = (sink_H.to(lse_BHS.dtype)[:, None] - lse_BHS).exp().masked_fill(is_blind, 0.0)
    return gradients, (weight_BHS * of_lse_BHS).sum((0, 2)).to(sink_H.dtype)


def _weight(part_BHS: Tensor, total_BHS: Tensor) -> Tensor:
    """exp(part - total) as [B, S, H, 1]; 0 where the part sees nothing."""
    weight_BHS = (part_BHS - total_BHS).exp().masked_fill(part_BHS == float("-inf"), 0.0)
    return weight_BHS.mT[..., None]


def _dot(a_BSHD: Tensor, b_BSHD: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, H, S]."""
    return (a_BSHD.to(dtype) * b_BSHD).sum(-1).mT
