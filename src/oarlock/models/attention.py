"""Grouped-query attention, and what every attention of a decoder shares: the norm and the cache's protocol.

B batch, S sequence, L cached positions, H query heads, K key heads, D head dim, E model width.
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from oarlock import ops
from oarlock.attention import ColumnMask, flashmask_attention
from oarlock.attention.context_parallel import ContextPlan
from oarlock.models.config import DecoderConfig
from oarlock.models.linear import Linear


class KVCache(Protocol):
    """What a layer keeps of earlier positions: its keys and values, or the latent that they are made from.

    `oarlock.generate` has one.
    """

    @property
    def length(self) -> int:
        """Positions L held before this forward pass."""
        ...

    def append(self, layer: int, key_BSKD: Tensor, value_BSKD: Tensor, /) -> tuple[Tensor, Tensor]:
        """Store S new positions of a layer; returns all its keys [B, L + S, K, D] and values [B, L + S, K, Dv]."""
        ...


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        width, bias = config.hidden_size, bool(config.attention_bias)
        self.layer = layer
        self.head_dim = config.head_dim
        self.rope_interleaved = config.family.rope_interleaved
        self.q_proj = Linear(width, config.num_attention_heads * self.head_dim, bias=bias)
        self.k_proj = Linear(width, config.num_key_value_heads * self.head_dim, bias=bias)
        self.v_proj = Linear(width, config.num_key_value_heads * self.head_dim, bias=bias)
        self.o_proj = Linear(config.num_attention_heads * self.head_dim, width, bias=bias and config.family.output_bias)
        self.sinks = nn.Parameter(torch.empty(config.num_attention_heads)) if config.family.attention_sink else None
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if config.family.qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if config.family.qk_norm else None

    def forward(
        self,
        x_BSE: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: ColumnMask,
        cache: KVCache | None,
        plan: ContextPlan | None = None,
    ) -> Tensor:
        q_BSHD = self.q_proj(x_BSE).unflatten(-1, (-1, self.head_dim))
        k_BSKD = self.k_proj(x_BSE).unflatten(-1, (-1, self.head_dim))
        v_BSKD = self.v_proj(x_BSE).unflatten(-1, (-1, self.head_dim))
        q_BSHD = self._rotated(q_BSHD, self.q_norm, cos, sin)
        k_BSKD = self._rotated(k_BSKD, self.k_norm, cos, sin)
        if cache is not None:
            k_BSKD, v_BSKD = cache.append(self.layer, k_BSKD, v_BSKD)
        out_BSHD = flashmask_attention(q_BSHD, k_BSKD, v_BSKD, mask, learnable_sink=self.sinks, plan=plan)
        return self.o_proj(out_BSHD.flatten(-2))

    def _rotated(self, x: Tensor, norm: RMSNorm | None, cos: Tensor, sin: Tensor) -> Tensor:
        if norm is None:
            return ops.rope(x, cos, sin, interleaved=self.rope_interleaved)
        return ops.norm_rope(x, norm.weight, norm.eps, cos, sin, interleaved=self.rope_interleaved)
