"""CPU attention in one C++ kernel per direction: online softmax over the visible tiles, in float32 inside.

The kernel reads tensors of any strides in float32, bfloat16 or float16, and neither expands key heads nor writes scores
to memory. Threads take pieces of about equal, exactly counted cost from one queue.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from oarlock import _native
from oarlock.attention.finite import all_finite, clean
from oarlock.attention.request import BACKWARD, OP, AttentionRequest, Options
from oarlock.providers import register


def _refuse(request: AttentionRequest) -> str | None:
    if request.device.type != "cpu":
        return f"runs on the CPU, the tensors are on {request.device}"
    if request.dtype not in _native.ATTENTION_DTYPES:
        return f"needs float32, bfloat16 or float16, got {request.dtype}"
    return None


def _native_options(options: Options) -> _native.AttentionOptions:
    mask, block_mask, dropout = options.mask, options.block_mask, options.dropout
    native = _native.AttentionOptions(
        mask.flat_bounds,
        mask.causal,
        mask.batch,
        mask.num_heads,
        options.scale,
        None if block_mask is None else block_mask.contiguous(),
        deterministic=options.deterministic,
    )
    if dropout is None:
        return native
    return replace(
        native,
        dropout_threshold=dropout.threshold,
        dropout_scale=dropout.scale,
        seed=dropout.seed,
        offset=dropout.offset,
    )


@register(OP, "fused", priority=20, refuse=_refuse)
def fused(query: Tensor, key: Tensor, value: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """The forward; equal inputs give equal bits for any number of threads."""
    out, lse = _native.attention_forward(query, key, value, _native_options(options))
    # A row whose scores are all -inf looks to the kernel like one without keys.
    looks_blind = lse == float("-inf")
    if looks_blind.any() and not all_finite(query, key):
        poisoned = clean(query, key, value, options.mask, options.block_mask).poisoned & looks_blind.mT
        out = out.masked_fill(poisoned[..., None], float("nan"))
        lse = lse.masked_fill(poisoned.mT, float("nan"))
    return out, lse


@register(BACKWARD, "fused", priority=20, refuse=_refuse)
def fused_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    options: Options,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients; equal inputs give equal bits for an equal number of threads, or for any if ``deterministic``."""
    gradient_of_lse = None if grad_lse is None else grad_lse.contiguous()
    results = (out, lse.contiguous(), _native_options(options))
    return _native.attention_backward(grad_out, gradient_of_lse, query, key, value, *results)
