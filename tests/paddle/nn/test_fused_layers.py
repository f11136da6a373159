"""The layers around fused operations compute what the plain layers of the same weights do."""

from typing import Any

import pytest
import torch
from torch import Tensor

from oarlock.paddle import incubate, nn

B, S, E, H, F = 2, 5, 12, 3, 20


def filled(layer: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    return layer


def twin(fused: Any) -> Any:
    """The plain layer with the fused one's weights."""
    before = fused.normalize_before
    plain: Any = nn.TransformerEncoderLayer(E, H, F, 0.0, "gelu", normalize_before=before)
    attention, forward = fused.fused_attn, fused.ffn
    weight_KE, bias_K = attention.qkv_weight.data.reshape(3 * E, E), attention.qkv_bias.data.reshape(3 * E)
    for part, name in enumerate(("q_proj", "k_proj", "v_proj")):
        linear = getattr(plain.self_attn, name)
        linear.weight.data = weight_KE[part * E : (part + 1) * E].T.clone()
        linear.bias.data = bias_K[part * E : (part + 1) * E].clone()
    for linear, weight, bias in (
        (plain.self_attn.out_proj, attention.linear_weight, attention.linear_bias),
        (plain.linear1, forward._linear1_weight, forward._linear1_bias),
        (plain.linear2, forward._linear2_weight, forward._linear2_bias),
        (plain.norm1, attention.pre_ln_scale, attention.pre_ln_bias)
        if before
        else (plain.norm1, attention.ln_scale, attention.ln_bias),
        (plain.norm2, forward._ln1_scale, forward._ln1_bias)
        if before
        else (plain.norm2, forward._ln2_scale, forward._ln2_bias),
    ):
        linear.weight.data, linear.bias.data = weight.data.clone(), bias.data.clone()
    return plain


def mask(kind: str) -> Tensor | None:
    seen = torch.ones(S, S, dtype=torch.bool).tril()
    return {"none": None, "bool": seen, "float": torch.zeros(S, S).masked_fill(~seen, -torch.inf)}[kind]


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("kind", ["none", "bool", "float"])
def test_an_encoder_layer_is_the_plain_one(before: bool, kind: str) -> None:
    fused = filled(incubate.nn.FusedTransformerEncoderLayer(E, H, F, 0.0, "gelu", normalize_before=before))
    plain = twin(fused)
    x, y = (torch.randn(B, S, E, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    got, wanted = fused(x, mask(kind)), plain(y, mask(kind))
    torch.testing.assert_close(got, wanted)
    got.square().sum().backward()
    wanted.square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)


def test_a_linear_layer_with_either_weight() -> None:
    x = torch.randn(4, E)
    for transposed, shape in ((False, [E, F]), (True, [F, E])):
        layer = filled(incubate.nn.FusedLinear(E, F, transpose_weight=transposed))
        assert list(layer.weight.shape) == shape
        torch.testing.assert_close(layer(x), x @ (layer.weight.T if transposed else layer.weight) + layer.bias)
    assert incubate.nn.FusedLinear(E, F, bias_attr=False).bias is None


def test_dropout_and_sum() -> None:
    x, y = torch.ones(1000), torch.full((1000,), 2.0)
    layer = incubate.nn.FusedDropoutAdd(0.25)
    kept = layer(x, y) - y
    torch.testing.assert_close(kept, torch.where(kept > 0, 4 / 3, 0.0))
    assert 0.65 < (kept > 0).float().mean() < 0.85
    layer.eval()
    torch.testing.assert_close(layer(x, y), x + y)
    assert repr(layer) == "FusedDropoutAdd(p=0.25, mode=upscale_in_train)"


def test_bias_residual_and_norm() -> None:
    layer = filled(incubate.nn.FusedBiasDropoutResidualLayerNorm(E, 0.0))
    x, residual = torch.randn(B, S, E), torch.randn(B, S, E)
    wanted = torch.nn.functional.layer_norm(residual + x + layer.linear_bias, [E], layer.ln_scale, layer.ln_bias)
    torch.testing.assert_close(layer(x, residual), wanted)


def test_what_is_not_here_is_refused() -> None:
    with pytest.raises(ValueError, match="must be a multiple"):
        incubate.nn.FusedMultiHeadAttention(10, 3)
    with pytest.raises(ValueError, match="need_weights"):
        incubate.nn.FusedMultiHeadAttention(12, 3, need_weights=True)
    with pytest.raises(ValueError, match="nranks=2"):
        incubate.nn.FusedFeedForward(12, 24, nranks=2)


def test_parameters_have_the_names_of_paddle() -> None:
    layer = incubate.nn.FusedMultiHeadAttention(E, H, normalize_before=True)
    wanted = ["qkv_weight", "qkv_bias", "linear_weight", "linear_bias", "pre_ln_scale", "pre_ln_bias"]
    assert [name for name, _ in layer.named_parameters()] == wanted
