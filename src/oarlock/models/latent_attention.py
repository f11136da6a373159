"""Multi-head latent attention (MLA): keys and values of all heads are made from one low-rank latent per token.

Notable choices: a head's query and key have a part without RoPE and a part with it, and the latter's key is one for all
heads; a cache holds the latent and this key, L + R numbers per token whatever the number of heads; new tokens few
enough attend to the cached latents themselves.

B batch, S new positions, T all positions, H heads, L width of the latent, N and R head dims without and with RoPE,
V value dim, E model width.

Source: DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1.
"""

import torch
from torch import Tensor, nn

from oarlock import ops
from oarlock.attention import ColumnMask, flashmask_attention
from oarlock.attention.context_parallel import ContextPlan
from oarlock.models.attention import KVCache, RMSNorm
from oarlock.models.config import DecoderConfig
from oarlock.models.linear import Linear

_LATENT_EPS = 1e-6  # of the latents' norms, whatever the model's rms_norm_eps (as in transformers)


class LatentAttention(nn.Module):
    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        width, heads, bias = config.hidden_size, config.num_attention_heads, bool(config.attention_bias)
        self.layer = layer
        self.rope_interleaved = config.family.rope_interleaved
        self.head_dim, self.rope_dim = config.head_dim, config.qk_rope_head_dim
        self.nope_dim, self.value_dim = config.qk_nope_head_dim, config.v_head_dim
        self.latent_dim = config.kv_lora_rank
        self.softmax_scale = softmax_scale(config)
        self.q_proj = Linear(width, heads * self.head_dim, bias=False) if config.q_lora_rank is None else None
        if config.q_lora_rank is not None:
            self.q_a_proj = Linear(width, config.q_lora_rank, bias=bias)
            self.q_a_layernorm = RMSNorm(config.q_lora_rank, _LATENT_EPS)
            self.q_b_proj = Linear(config.q_lora_rank, heads * self.head_dim, bias=False)
        self.kv_a_proj_with_mqa = Linear(width, self.latent_dim + self.rope_dim, bias=bias)
        self.kv_a_layernorm = RMSNorm(self.latent_dim, _LATENT_EPS)
        self.kv_b_proj = Linear(self.latent_dim, heads * (self.nope_dim + self.value_dim), bias=False)
        self.o_proj = Linear(heads * self.value_dim, width, bias=bias)

    def forward(
        self,
        x_BSE: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: ColumnMask,
        cache: KVCache | None,
        plan: ContextPlan | None = None,
    ) -> Tensor:
        q_BSHD = self._queries(x_BSE).unflatten(-1, (-1, self.head_dim))
        q_BSHN, q_BSHR = q_BSHD.split([self.nope_dim, self.rope_dim], dim=-1)
        q_BSHR = ops.rope(q_BSHR, cos, sin, interleaved=self.rope_interleaved)
        latent_BSL, k_BSR = self.kv_a_proj_with_mqa(x_BSE).split([self.latent_dim, self.rope_dim], dim=-1)
        latent_BT1L = self.kv_a_layernorm(latent_BSL).unsqueeze(2)
        k_BT1R = ops.rope(k_BSR.unsqueeze(2), cos, sin, interleaved=self.rope_interleaved)
        if cache is not None:
            latent_BT1L, k_BT1R = cache.append(self.layer, latent_BT1L, k_BT1R)
        heads = (q_BSHN, q_BSHR, latent_BT1L, k_BT1R, mask)
        if plan is None and self._is_cheaper_on_latents(x_BSE.shape[1], mask):
            out_BSHV = self._attend_to_latents(*heads)
        else:
            out_BSHV = self._attend(*heads, plan)
        return self.o_proj(out_BSHV.flatten(-2))

    def _queries(self, x_BSE: Tensor) -> Tensor:
        if self.q_proj is not None:
            return self.q_proj(x_BSE)
        return self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x_BSE)))

    def _attend(
        self,
        q_BSHN: Tensor,
        q_BSHR: Tensor,
        latent_BT1L: Tensor,
        k_BT1R: Tensor,
        mask: ColumnMask,
        plan: ContextPlan | None,
    ) -> Tensor:
        """[B, S, H, V], with keys and values of every head made from the latents."""
        kv_BTHD = self.kv_b_proj(latent_BT1L.squeeze(2)).unflatten(-1, (-1, self.nope_dim + self.value_dim))
        k_BTHN, v_BTHV = kv_BTHD.split([self.nope_dim, self.value_dim], dim=-1)
        k_BTHD = torch.cat([k_BTHN, k_BT1R.expand(-1, -1, k_BTHN.shape[2], -1)], dim=-1)
        q_BSHD = torch.cat([q_BSHN, q_BSHR], dim=-1)
        return flashmask_attention(q_BSHD, k_BTHD, v_BTHV, mask, softmax_scale=self.softmax_scale, plan=plan)

    def _attend_to_latents(
        self, q_BSHN: Tensor, q_BSHR: Tensor, latent_BT1L: Tensor, k_BT1R: Tensor, mask: ColumnMask
    ) -> Tensor:
        """The same without making keys and values: q · (W latent) = (Wᵀ q) · latent, and the weighted sum of
        W latent is W times that of the latents. All heads then read one key [latent, k] and one value, the latent."""
        weight_HDL = self.kv_b_proj.weight.unflatten(0, (-1, self.nope_dim + self.value_dim))
        key_HNL, value_HVL = weight_HDL.split([self.nope_dim, self.value_dim], dim=1)
        q_BSHD = torch.cat([torch.einsum("bshn,hnl->bshl", q_BSHN, key_HNL), q_BSHR], dim=-1)
        k_BT1D = torch.cat([latent_BT1L, k_BT1R], dim=-1)
        out_BSHL = flashmask_attention(q_BSHD, k_BT1D, latent_BT1L, mask, softmax_scale=self.softmax_scale)
        return torch.einsum("bshl,hvl->bshv", out_BSHL, value_HVL)

    def _is_cheaper_on_latents(self, num_new: int, mask: ColumnMask) -> bool:
        """Compares the products: S · H · (2L + R) per key, against S · H · (D + V) and L · H · (N + V) to make it."""
        if mask.seqlen_k == num_new:  # nothing is cached: making the keys is part of the pass, as in training
            return False
        more = 2 * self.latent_dim + self.rope_dim - self.head_dim - self.value_dim
        return num_new * more < self.latent_dim * (self.nope_dim + self.value_dim)


def softmax_scale(config: DecoderConfig) -> float:
    """head_dim^-½, times the square of YaRN's magnitude over all dims where the configuration asks for it."""
    scaling = config.rope_scaling or {}
    over_all = scaling.get("mscale_all_dim")
    magnitude = ops.yarn_magnitude(scaling["factor"], over_all) if over_all else 1.0
    return config.head_dim**-0.5 * magnitude**2
