"""Attention with several heads between linear layers, and its caches for decoding.

B batch, Q queries, K keys, E embed_dim, H heads, D = E / H.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from oarlock.paddle.nn import functional
from oarlock.paddle.nn.layer.layers import Layer
from oarlock.paddle.nn.layer.weighted import Linear


class Cache(NamedTuple):
    """Keys and values [B, H, K, D] of the steps so far."""

    k: Tensor
    v: Tensor


class StaticCache(NamedTuple):
    """Keys and values [B, H, K, D] that do not grow: of an encoder's output."""

    k: Tensor
    v: Tensor


class MultiHeadAttention(Layer):
    """softmax(q k^T / sqrt(D) + mask) v for each head, between linear layers.

    Args:
        dropout: of the attention weights, while training.
        kdim, vdim: sizes of keys and values; embed_dim by default.
        need_weights: return the attention weights [B, H, Q, K], too.
    """

    Cache = Cache
    StaticCache = StaticCache

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        kdim: int | None = None,
        vdim: int | None = None,
        need_weights: bool = False,
        weight_attr: Any = None,
        bias_attr: Any = None,
    ) -> None:
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads:
            raise ValueError(f"embed_dim = {embed_dim} must be a positive multiple of num_heads = {num_heads}")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        self.dropout, self.need_weights = dropout, need_weights
        self.q_proj = Linear(embed_dim, embed_dim, weight_attr, bias_attr)
        self.k_proj = Linear(self.kdim, embed_dim, weight_attr, bias_attr)
        self.v_proj = Linear(self.vdim, embed_dim, weight_attr, bias_attr)
        self.out_proj = Linear(embed_dim, embed_dim, weight_attr, bias_attr)

    def _heads(self, x: Tensor) -> Tensor:
        """[B, S, E] -> [B, H, S, D]."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def compute_kv(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [B, K, kdim] and values [B, K, vdim] behind their linear layers, by heads: [B, H, K, D] each."""
        return self._heads(self.k_proj(key)), self._heads(self.v_proj(value))

    def gen_cache(self, key: Tensor, value: Tensor | None = None, type: Any = Cache) -> Any:
        """A cache for `forward`.

        Args:
            key: with `type=StaticCache` the keys that all steps attend to; with a value: both as they are kept; without
                one: anything with the batch first, for an empty cache.
        """
        if type is StaticCache:
            return StaticCache(*self.compute_kv(key, key if value is None else value))
        if value is not None:
            return Cache(key, value)
        empty = key.new_empty(key.shape[0], self.num_heads, 0, self.head_dim, dtype=self._weight_dtype())
        return Cache(empty, empty)

    def _weight_dtype(self) -> torch.dtype:
        weight = self.k_proj.weight
        assert weight is not None
        return weight.dtype

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        attn_mask: Tensor | None = None,
        cache: Any = None,
    ) -> Any:
        """[B, Q, E] -> [B, Q, E], followed by the weights and the new cache where they are asked for.

        Args:
            attn_mask: broadcast to [B, H, Q, K]: added, or True where attention is allowed.
        """
        key = query if key is None else key
        value = query if value is None else value
        q = self._heads(self.q_proj(query))
        if isinstance(cache, StaticCache):
            k, v = cache
        else:
            k, v = self.compute_kv(key, value)
            if isinstance(cache, Cache):
                k, v = torch.cat([cache.k, k], 2), torch.cat([cache.v, v], 2)
                cache = Cache(k, v)
        weights = None
        if self.need_weights or attn_mask is not None:
            # Fused kernels lose the gradient of rows that may attend to nothing: -1e9 swallows their scores.
            scores = q @ k.transpose(-2, -1) * self.head_dim**-0.5
            weights = (scores if attn_mask is None else scores + added_mask(attn_mask, q.dtype)).softmax(-1)
            weights = functional.dropout(weights, self.dropout, training=self.training)
            found = weights @ v
        else:
            rate = self.dropout if self.training else 0.0
            found = torch.nn.functional.scaled_dot_product_attention(q, k, v, None, rate)
        result = [self.out_proj(found.transpose(1, 2).flatten(2))]
        if self.need_weights:
            result.append(weights)
        if cache is not None:
            result.append(cache)
        return result[0] if len(result) == 1 else tuple(result)


def added_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask that is added: 0 where True, -1e9 elsewhere, so that a row without any key stays finite."""
    if mask.is_floating_point():
        return mask.to(dtype)
    return (mask.to(dtype) - 1.0) * 1e9
