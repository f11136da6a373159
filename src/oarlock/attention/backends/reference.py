"""The definition, written out densely in plain autograd: any device and float dtype, O(Sq * Sk) memory.

Legend: B batch, Sq query rows, Sk keys, Hq/Hk query and key heads, G = Hq / Hk, D head dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oarlock.attention.masks import ColumnMask
from oarlock.attention.request import OP, AttentionRequest
from oarlock.providers import register

BLOCK = 128
"""Rows and keys that one entry of a block mask stands for."""


def _refuse(request: AttentionRequest) -> str | None:
    return None if request.dtype.is_floating_point else f"needs a floating-point dtype, got {request.dtype}"


@register(OP, "reference", priority=0, refuse=_refuse)
def reference(
    query: Tensor, key: Tensor, value: Tensor, mask: ColumnMask, *, scale: float, block_mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """softmax(scale * Q K^T + mask) V and its log-sum-exp, in float32 (float64 for float64 inputs)."""
    num_heads, seqlen_q, seqlen_k = query.shape[2], query.shape[1], key.shape[1]
    compute_dtype = torch.promote_types(query.dtype, torch.float32)
    q_BHQD = query.transpose(1, 2).to(compute_dtype)
    k_BHKD, v_BHKD = (
        x.transpose(1, 2).to(compute_dtype).repeat_interleave(num_heads // x.shape[2], dim=1) for x in (key, value)
    )
    visible = mask.to_dense()
    if block_mask is not None:
        pairs = block_mask.repeat_interleave(BLOCK, dim=2).repeat_interleave(BLOCK, dim=3)
        visible = visible & pairs[:, :, :seqlen_q, :seqlen_k]
    visible = visible.repeat_interleave(num_heads // visible.shape[1], dim=1)
    # Rows without keys get harmless finite scores, so that no gradient passes through inf - inf.
    blind_rows = ~visible.any(dim=-1).expand(q_BHQD.shape[:3])
    scores = (q_BHQD @ k_BHKD.mT * scale).masked_fill(~visible, float("-inf"))
    scores = scores.masked_fill(blind_rows[..., None], 0.0)
    if seqlen_k == 0:
        lse = scores.new_zeros(scores.shape[:3]) + 0 * q_BHQD.sum(dim=-1)
    else:
        lse = scores.logsumexp(dim=-1)
    out = (scores - lse[..., None]).exp() @ v_BHKD
    out = out.masked_fill(blind_rows[..., None], 0.0).to(query.dtype)
    return out.transpose(1, 2), lse.masked_fill(blind_rows, float("-inf"))
