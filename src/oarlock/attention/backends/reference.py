"""The definition, written out densely in plain autograd: any device and float dtype, O(Sq * Sk) memory.

Legend: B batch, Sq query rows, Sk keys, Hq/Hk query and key heads, D head dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oarlock.attention.finite import clean, dense, gradients_of_finite, has_nan
from oarlock.attention.request import BACKWARD, OP, AttentionRequest, Options, takes_sink
from oarlock.providers import register


def _refuse(request: AttentionRequest) -> str | None:
    return None if request.dtype.is_floating_point else f"needs a floating-point dtype, got {request.dtype}"


@register(OP, "reference", priority=0, refuse=_refuse)
@takes_sink
def reference(query: Tensor, key: Tensor, value: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """softmax(scale * Q K^T + mask) V and its log-sum-exp, in float32 (float64 for float64 inputs)."""
    if _all_finite(query, key, value):
        return _attention(query, key, value, options)
    cleaned = clean(query, key, value, options.mask, options.block_mask)
    out, lse = _attention(cleaned.query, cleaned.key, cleaned.value, options)
    nan = float("nan")
    return (
        out.masked_fill(cleaned.poisoned[..., None], nan),
        lse.masked_fill(cleaned.poisoned.transpose(1, 2), nan),
    )


@register(BACKWARD, "reference", priority=0, refuse=_refuse)
def reference_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    options: Options,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by autograd through the definition, computed again."""

    def backward(
        grad_out: Tensor, grad_lse: Tensor | None, query: Tensor, key: Tensor, value: Tensor, *_: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        with torch.enable_grad():
            q, k, v = leaves = [x.detach().requires_grad_() for x in (query, key, value)]
            results = _attention(q, k, v, options)
            if options.sink is not None:
                results = results[0], torch.logaddexp(results[1], options.sink[:, None])
        if grad_lse is None:
            grad_lse = torch.zeros_like(results[1])
        dq, dk, dv = torch.autograd.grad(results, leaves, (grad_out, grad_lse))
        return dq, dk, dv

    arguments = (grad_out, grad_lse, query, key, value, out, lse)
    gradients = backward(*arguments)
    if has_nan(*gradients):
        gradients = gradients_of_finite(backward, *arguments, options.mask, options.block_mask)
    return gradients


def _all_finite(*tensors: Tensor) -> bool:
    return all(bool(x.isfinite().all()) for x in tensors)


def _attention(query: Tensor, key: Tensor, value: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    num_heads = query.shape[2]
    compute_dtype = torch.promote_types(query.dtype, torch.float32)
    q_BHQD = query.transpose(1, 2).to(compute_dtype)
    k_BHKD, v_BHKD = (
        x.transpose(1, 2).to(compute_dtype).repeat_interleave(num_heads // x.shape[2], dim=1) for x in (key, value)
    )
    visible = dense(options.mask, options.block_mask)
    visible = visible.repeat_interleave(num_heads // visible.shape[1], dim=1)
    # Rows without keys get harmless finite scores, so that no gradient passes through inf - inf.
    blind_rows = ~visible.any(dim=-1).expand(q_BHQD.shape[:3])
    scores = (q_BHQD @ k_BHKD.mT * options.scale).masked_fill(~visible, float("-inf"))
    scores = scores.masked_fill(blind_rows[..., None], 0.0)
    if key.shape[1] == 0:
        lse = scores.new_zeros(scores.shape[:3]) + 0 * q_BHQD.sum(dim=-1)
    else:
        lse = scores.logsumexp(dim=-1)
    total = lse if options.sink is None else torch.logaddexp(lse, options.sink[:, None])
    weights = (scores - total[..., None]).exp()
    if options.dropout is not None:
        weights = weights * options.dropout.factors(weights.shape, query.device)
    out = (weights @ v_BHKD).masked_fill(blind_rows[..., None], 0.0).to(query.dtype)
    return out.transpose(1, 2), lse.masked_fill(blind_rows, float("-inf"))
