"""Latent attention: both ways of computing it agree, and the cache holds latents only."""

import math

import pytest
import torch

from oarlock.attention import ColumnMask
from oarlock.generate import KeyValueCache
from oarlock.models import DecoderConfig
from oarlock.models.latent_attention import LatentAttention, softmax_scale
from oarlock.ops import rope_tables

CONFIG = DecoderConfig(
    model_type="deepseek_v3",
    vocab_size=10,
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=4,
    kv_lora_rank=24,
    q_lora_rank=12,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=6,
)


def layer(device="cpu", dtype=torch.float32) -> LatentAttention:
    attention = LatentAttention(CONFIG, 0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in attention.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.3, generator=generator)
    return attention.to(device, dtype)


def inputs(seqlen: int, device="cpu") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = torch.randn(2, seqlen, CONFIG.hidden_size, generator=torch.Generator().manual_seed(1)).to(device)
    cos, sin = rope_tables(torch.arange(seqlen, device=device).unsqueeze(0), CONFIG.qk_rope_head_dim, 10_000.0)
    return x, cos, sin


@pytest.mark.parametrize("parts", [[1] * 40, [3, 7, 30], [30, 10], [1, 39]])
def test_every_split_into_cached_passes_gives_the_same(parts, device):
    """Passes of up to 9 tokens attend to the latents, longer ones to keys and values made from them."""
    attention, (x, cos, sin) = layer(device), inputs(40, device)
    whole = attention(x, cos, sin, ColumnMask.plain_causal(40, device=device), None)
    cache, out = KeyValueCache(1), []
    for begin, part in zip(torch.tensor([0, *parts]).cumsum(0).tolist(), parts, strict=False):
        rows = slice(begin, begin + part)
        mask = ColumnMask.plain_causal(part, begin + part, device=device)
        out.append(attention(x[:, rows], cos[:, rows], sin[:, rows], mask, cache))
    torch.testing.assert_close(torch.cat(out, dim=1), whole, rtol=1e-5, atol=1e-5)  # other orders of summation


def test_the_way_is_chosen_by_its_products():
    attention = layer()
    mask = ColumnMask.plain_causal(1, 100)
    # 2 · 24 + 4 - 12 - 6 = 34 more per new token, against 24 · 14 = 336 to make a key and value
    assert [attention._is_cheaper_on_latents(n, mask) for n in (1, 9, 10)] == [True, True, False]
    assert not attention._is_cheaper_on_latents(5, ColumnMask.plain_causal(5))


def test_gradients_agree(device):
    attention, (x, cos, sin) = layer(device), inputs(12, device)
    mask = ColumnMask.plain_causal(12, device=device)
    gradients = []
    for is_cheaper in (False, True):
        attention._is_cheaper_on_latents = lambda *_, answer=is_cheaper: answer
        out = attention(x, cos, sin, mask, None)
        gradients.append(torch.autograd.grad(out.square().sum(), list(attention.parameters())))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_the_cache_holds_latents():
    attention, (x, cos, sin) = layer(dtype=torch.bfloat16), inputs(10)
    cache = KeyValueCache(1, capacity=10)
    attention(x.bfloat16(), cos, sin, ColumnMask.plain_causal(10), cache)
    assert cache.num_bytes == 2 * 10 * 2 * (CONFIG.kv_lora_rank + CONFIG.qk_rope_head_dim)


def test_softmax_scale_follows_the_authors():
    """DeepSeek-V3's inference code: (0.1 · mscale · ln(factor) + 1)², with mscale 1 and factor 40."""
    scaling = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0}
    fields = {name: getattr(CONFIG, name) for name in CONFIG.__dataclass_fields__}
    scaled = DecoderConfig(**{**fields, "rope_scaling": scaling | {"mscale_all_dim": 1.0}})
    assert softmax_scale(scaled) == pytest.approx(12**-0.5 * (0.1 * math.log(40) + 1) ** 2)
    assert softmax_scale(DecoderConfig(**{**fields, "rope_scaling": scaling})) == 12**-0.5
    assert softmax_scale(CONFIG) == 12**-0.5
