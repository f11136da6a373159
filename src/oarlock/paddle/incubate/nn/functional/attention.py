"""Attention with what is around it in a layer, and of padded sequences. B batch, S sequence, H heads, D head size."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.nn.functional.layers import dropout
from oarlock.paddle.nn.functional.norm import layer_norm

AT = "paddle.incubate.nn.functional"


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as what is added to scores: False and the integer 0 hide."""
    if mask.is_floating_point():
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask == 0, float("-inf"))


@api(at=AT, out=False)
def fused_multi_head_attention(
    x: Tensor,
    qkv_weight: Tensor,
    linear_weight: Tensor,
    pre_layer_norm: bool = False,
    pre_ln_scale: Tensor | None = None,
    pre_ln_bias: Tensor | None = None,
    ln_scale: Tensor | None = None,
    ln_bias: Tensor | None = None,
    pre_ln_epsilon: float = 1e-5,
    qkv_bias: Tensor | None = None,
    linear_bias: Tensor | None = None,
    cache_kv: Tensor | None = None,
    attn_mask: Tensor | None = None,
    dropout_rate: float = 0.5,
    attn_dropout_rate: float = 0.5,
    ln_epsilon: float = 1e-5,
    training: bool = True,
    mode: str = "upscale_in_train",
    ring_id: int = -1,
    add_residual: bool = True,
    num_heads: int = -1,
    transpose_qkv_wb: bool = False,
) -> Any:
    """`x + dropout(linear(attention(x)))` with a layer norm, before if `pre_layer_norm`, else on the sum.

    Args:
        x: [B, S, E].
        qkv_weight: [3, H, D, E], or with `transpose_qkv_wb` [E, 3·E] for `num_heads` heads.
        linear_weight: [E, E].
        qkv_bias: [3, H, D], or [3·E].
        cache_kv: [2, B, H, earlier, D], keys and values seen before.
        attn_mask: broadcast to [B, H, S, keys]: added, or False and 0 hide.
        ring_id: -1: the weights are whole.

    Returns:
        [B, S, E]; with `cache_kv` also the cache with the new keys and values.

    Raises:
        ValueError: another `ring_id`.
    """
    if ring_id != -1:
        raise ValueError(f"ring_id {ring_id}: the weights must be whole; pass -1")
    batch, length, width = x.shape
    start = layer_norm(x, width, pre_ln_scale, pre_ln_bias, pre_ln_epsilon) if pre_layer_norm else x
    if transpose_qkv_wb:
        packed = torch.matmul(start, qkv_weight).unflatten(-1, (3, num_heads, -1))
        packed = packed if qkv_bias is None else packed + qkv_bias.reshape(3, num_heads, -1)
    else:
        packed = torch.einsum("bse,thde->bsthd", start, qkv_weight)
        packed = packed if qkv_bias is None else packed + qkv_bias
    q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
    if cache_kv is not None:
        k, v = torch.cat([cache_kv[0], k], 2), torch.cat([cache_kv[1], v], 2)
    scores = q @ k.mT * q.shape[-1] ** -0.5
    scores = scores if attn_mask is None else scores + _added(attn_mask, scores.dtype)
    weights = dropout(scores.softmax(-1), attn_dropout_rate, training=training, mode=mode)
    made = (weights @ v).transpose(1, 2).reshape(batch, length, -1) @ linear_weight
    made = dropout(made if linear_bias is None else made + linear_bias, dropout_rate, training=training, mode=mode)
    made = x + made if add_residual else made
    made = made if pre_layer_norm else layer_norm(made, width, ln_scale, ln_bias, ln_epsilon)
    return made if cache_kv is None else (made, torch.stack([k, v]))


@api(at=AT)
def variable_length_memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seq_lens: Tensor,
    kv_seq_lens: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    pre_cache_length: int = 0,
) -> Tensor:
    """Attention of padded sequences: keys from `kv_seq_lens + pre_cache_length` on are hidden.

    Args:
        query: [B, H, S, D].
        key: [B, Hk, Sk, D], value alike.
        seq_lens: int32 [B, 1]; later rows give 0.
        kv_seq_lens: int32 [B, 1].
        mask: added to the scores, [B, 1, S, Sk].
        causal: rows are aligned to the first key after the `pre_cache_length` ones.

    Returns:
        [B, H, S, D].
    """
    length, keys = query.shape[2], key.shape[2]
    row = torch.arange(length, device=query.device)
    column = torch.arange(keys, device=query.device)
    seen = column < (kv_seq_lens.reshape(-1, 1, 1, 1) + pre_cache_length)
    if causal:
        seen = seen & (column <= row[:, None] + pre_cache_length)
    bias = torch.zeros(seen.shape, dtype=query.dtype, device=query.device).masked_fill(~seen, float("-inf"))
    bias = bias if mask is None else bias + mask[..., :length, :keys].to(query.dtype)
    made = F.scaled_dot_product_attention(
        query, key, value, bias, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )
    return made * (row[:, None] < seq_lens.reshape(-1, 1, 1, 1))


@api(at="paddle.incubate.nn.memory_efficient_attention", out=False)
def memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None = None,
    p: float = 0.0,
    scale: float | None = None,
    training: bool = True,
) -> Tensor:
    """`softmax(query·keyᵀ·scale + attn_bias)·value` of [B, S, H, D].

    Args:
        attn_bias: added to the scores, broadcast to [B, H, S, Sk].
        p: probability with which a weight becomes 0 while training.
    """
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if attn_bias is None else scores + _added(attn_bias, scores.dtype)
    weights = dropout(scores.softmax(-1), p, training=training)
    return torch.einsum("bhqk,bkhd->bqhd", weights, value)


@api(at="paddle.incubate")
def softmax_mask_fuse(x: Tensor, mask: Tensor) -> Tensor:
    """`softmax(x + mask)` over the last dimension."""
    return torch.softmax(x + mask, -1)


@api(at="paddle.incubate")
def softmax_mask_fuse_upper_triangle(x: Tensor) -> Tensor:
    """The softmax of each row over its columns up to the diagonal, 0 after it."""
    hidden = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    return torch.softmax(x.masked_fill(hidden, float("-inf")), -1)
