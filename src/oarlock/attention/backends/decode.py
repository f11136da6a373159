"""CPU attention of few rows: one call of ATen's flash kernel, without a plan.

Decoding makes a new mask for every token, so what a plan would save is less than what it costs.

Legend: B batch, Hm mask heads, Hq query heads, Q rows, S keys, D head dim.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.attention.backends.cpu import FEW_KEYS
from oarlock.attention.finite import all_finite, clean, has_nan
from oarlock.attention.masks import ColumnMask
from oarlock.attention.request import OP, AttentionRequest, Options
from oarlock.providers import register

_FORWARD: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def _refuse(request: AttentionRequest) -> str | None:
    if not request.is_decoding:
        return "only takes few rows"
    if request.device.type != "cpu":
        return f"runs on the CPU, the tensors are on {request.device}"
    if _FORWARD is None:
        return f"torch {torch.__version__} has no CPU flash-attention op"
    if request.dtype not in _DTYPES:
        return f"needs float32, float64, bfloat16 or float16, got {request.dtype}"
    if request.has_block_mask:
        return "does not take a block_mask"
    return "does not drop weights" if request.has_dropout else None


@register(OP, "decode", priority=30, refuse=_refuse)
def decode(query: Tensor, key: Tensor, value: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """All rows against all keys, with an additive mask unless every row sees every key."""
    assert options.block_mask is None
    assert options.dropout is None
    mask, scale = options.mask, options.scale
    bias, blind = mask.cached(("bias", query.dtype), lambda: _bias(mask, query.dtype))
    if key.shape[1] == 0 or query.numel() == 0:
        out = query.new_zeros((*query.shape[:3], value.shape[3]))
        dtype = torch.promote_types(query.dtype, torch.float32)
        return out, query.new_full(out.shape[:3], float("-inf"), dtype=dtype).transpose(1, 2)
    if bias is not None and bias.shape[1] not in (1, query.shape[2]):
        bias, blind = (
            None if x is None else x.repeat_interleave(query.shape[2] // x.shape[1], dim=1) for x in (bias, blind)
        )
    out, lse = _attend(query, key, value, bias, blind, scale)
    # A row whose scores are all -inf looks to the kernel like one without keys, of which it says lse = 0.
    if has_nan(out, lse) or (bool((lse == 0).any()) and not all_finite(query, key)):
        cleaned = clean(query, key, value, mask, None)
        out, lse = _attend(cleaned.query, cleaned.key, cleaned.value, bias, blind, scale)
        out = out.masked_fill(cleaned.poisoned[..., None], float("nan"))
        lse = lse.masked_fill(cleaned.poisoned.transpose(1, 2), float("nan"))
    return out, lse


def _attend(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, blind: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    head_dim, value_dim = key.shape[3], value.shape[3]
    if head_dim != value_dim:
        width = max(head_dim, value_dim)
        query, key, value = (F.pad(x, (0, width - x.shape[3])) for x in (query, key, value))
    q, k, v = ((x if x.stride(3) == 1 else x.contiguous()).transpose(1, 2) for x in (query, key, value))
    out, lse = _FORWARD(q, k, v, 0.0, False, attn_mask=bias, scale=scale)
    out = out.transpose(1, 2)
    if blind is not None:
        lse = lse.masked_fill(blind, float("-inf"))  # the kernel says 0
    return out if head_dim == value_dim else out[..., :value_dim], lse


def _bias(mask: ColumnMask, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """[B, Hm, Q, S] of 0 and -inf, and the rows without keys; None for what is not needed."""
    if mask.causal and mask.seqlen_q == 1 and mask.bounds.shape[3] == 1:
        visible = mask.bounds.mT > 0  # the usual step of generation; the triangle hides nothing from the last row
    else:
        visible = mask.to_dense()
    if visible.all() and mask.seqlen_k >= FEW_KEYS:
        return None, None
    # The kernel takes float32 beside half dtypes, but silently misreads it beside float64.
    bias = torch.zeros(visible.shape, dtype=torch.promote_types(dtype, torch.float32), device=visible.device)
    bias.masked_fill_(~visible, float("-inf"))
    blind = ~visible.any(-1)
    return bias, blind if blind.any() else None
