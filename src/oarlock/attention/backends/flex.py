"""torch's FlexAttention, which is given exact block lists instead of searching all Sq x Sk pairs for them.

For comparisons, and for GPUs without our own kernels: ``backend="auto"`` never takes it. It is compiled for each shape.
The registry hands a backward the results of a forward, which FlexAttention cannot use; it computes them again.

Legend: B batch, S rows or keys, H heads.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from oarlock.attention import sink
from oarlock.attention.finite import Gradients, all_finite, clean, gradients_of_finite, has_nan
from oarlock.attention.request import BACKWARD, OP, AttentionRequest, Options
from oarlock.providers import register

MIN_HEAD_DIM = 16
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _refuse(request: AttentionRequest) -> str | None:
    if request.device.type == "cpu":
        return "runs on a GPU; torch's FlexAttention has no backward on the CPU"
    if request.dtype not in _DTYPES:
        return f"needs float32, bfloat16 or float16, got {request.dtype}"
    if min(request.head_dim, request.value_dim) < MIN_HEAD_DIM:
        return f"needs head dims from {MIN_HEAD_DIM} on, got {request.head_dim} and {request.value_dim}"
    if request.has_block_mask:
        return "does not take a block_mask"
    return "does not drop weights" if request.has_dropout else None


@register(OP, "flex", priority=-10, refuse=_refuse)
def flex(query: Tensor, key: Tensor, value: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """The forward."""
    return attend(query, key, value, options, compiled=True)


@register(BACKWARD, "flex", priority=-10, refuse=_refuse)
def flex_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    options: Options,
) -> Gradients:
    """The gradients, by FlexAttention's own backward of its own forward, computed again."""
    arguments = (grad_out, grad_lse, query, key, value, out, lse)
    backward = functools.partial(_backward, options=options)
    gradients = backward(*arguments)
    if has_nan(*gradients):
        gradients = gradients_of_finite(backward, *arguments, options.mask, options.block_mask)
    return gradients


def attend(query: Tensor, key: Tensor, value: Tensor, options: Options, *, compiled: bool) -> tuple[Tensor, Tensor]:
    """out [B, S, H, Dv] and lse [B, H, S]; without ``compiled`` in dense tensor operations, on any device."""
    if query.numel() == 0 or key.shape[1] == 0:
        out = query.new_zeros((*query.shape[:3], value.shape[3]))
        return out, query.new_full(out.shape[:3], float("-inf"), dtype=torch.float32).transpose(1, 2)
    with torch.no_grad():
        out, lse = _attend(query, key, value, options, compiled)
        if has_nan(out, lse) or not all_finite(query, key):
            cleaned = clean(query, key, value, options.mask, options.block_mask)
            out, lse = _attend(cleaned.query, cleaned.key, cleaned.value, options, compiled)
            out = out.masked_fill(cleaned.poisoned[..., None], float("nan"))
            lse = lse.masked_fill(cleaned.poisoned.transpose(1, 2), float("nan"))
    return out, lse


def _backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    options: Options,
) -> Gradients:
    leaves = [x.detach().requires_grad_() for x in (query, key, value)]
    if out.numel() == 0 or key.shape[1] == 0:
        return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    with torch.enable_grad():
        results = _attend(leaves[0], leaves[1], leaves[2], options, True)
        if options.sink is not None:
            results = sink.rescale(*results, options.sink), sink.include(results[1], options.sink)
    if grad_lse is None:
        dq, dk, dv = torch.autograd.grad(results[0], leaves, grad_out)
    else:
        # FlexAttention has NaN as the gradient of a row that sees nothing, if one arrives at its lse.
        grad_lse = grad_lse.masked_fill(lse == float("-inf"), 0)
        dq, dk, dv = torch.autograd.grad(results, leaves, (grad_out, grad_lse))
    return dq, dk, dv


def _attend(query: Tensor, key: Tensor, value: Tensor, options: Options, compiled: bool) -> tuple[Tensor, Tensor]:
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    mask, num_heads = options.mask, query.shape[2]
    block_mask = mask.cached(("flex", num_heads), lambda: mask.to_flex_block_mask(num_heads))
    function: Any = _compiled() if compiled else flex_attention
    out, aux = function(
        *(x.transpose(1, 2) for x in (query, key, value)),
        block_mask=block_mask,
        scale=options.scale,
        enable_gqa=num_heads != key.shape[2],
        return_aux=AuxRequest(lse=True),
    )
    return out.transpose(1, 2), aux.lse


@functools.cache
def _compiled() -> Any:
    """FlexAttention, compiled anew for each shape; with fullgraph an unfused fall-back is an error."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False, fullgraph=True)
