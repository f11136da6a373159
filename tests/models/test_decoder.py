"""The decoder's own promises: independence of documents, caching, checkpointing, initialisation, precision, counts."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from oarlock import models, ops
from oarlock.attention import ColumnMask
from oarlock.models import Decoder, DecoderConfig

SHAPE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
DENSE = DecoderConfig(**SHAPE)
CONFIGS = {
    "llama": DENSE,
    "qwen3-window": DecoderConfig(
        **SHAPE,
        model_type="qwen3",
        tie_word_embeddings=True,
        sliding_window=4,
        layer_types=("full_attention", "sliding_attention"),
    ),
    "ernie4_5_moe": DecoderConfig(
        **SHAPE, **EXPERTS, model_type="ernie4_5_moe", num_shared_experts=1, sparse_layers=(1,)
    ),
    "dots1": DecoderConfig(**SHAPE, **EXPERTS, model_type="dots1", num_shared_experts=1),
    "deepseek_v3": DecoderConfig(
        **{**SHAPE, **EXPERTS, "num_key_value_heads": 4},
        **{"kv_lora_rank": 20, "q_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8},
        **{"n_group": 2, "topk_group": 1},
        model_type="deepseek_v3",
        num_shared_experts=1,
        sparse_layers=(1,),
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale_all_dim": 1},
    ),
    "gpt_oss": DecoderConfig(
        **{**SHAPE, "intermediate_size": 16}, **EXPERTS, model_type="gpt_oss", sliding_window=4, swiglu_limit=2.0
    ),
}
every_config = pytest.mark.parametrize("name", CONFIGS)


def decoder(config: DecoderConfig, device="cpu", dtype=torch.float32) -> Decoder:
    model = Decoder(config)
    model.initialize(torch.Generator().manual_seed(0))
    with torch.no_grad():  # larger than fresh weights, so that attention and routing are far from uniform
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                parameter.normal_(generator=torch.Generator().manual_seed(1))
    return model.to(device=device, dtype=dtype)


def tokens(*shape: int, seed: int = 1, device="cpu") -> torch.Tensor:
    return torch.randint(0, SHAPE["vocab_size"], shape, generator=torch.Generator().manual_seed(seed)).to(device)


def positions(lengths: list[int]) -> torch.Tensor:
    return torch.cat([torch.arange(length) for length in lengths]).unsqueeze(0)


def losses(model: Decoder, ids: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Loss of each token of a packed row; the last token of a document has none."""
    targets = ids[0].roll(-1)
    targets[torch.tensor(lengths).cumsum(0) - 1] = -100
    mask = ColumnMask.causal_document(lengths, device=ids.device)
    hidden = model(ids, position_ids=positions(lengths).to(ids.device), mask=mask)
    return ops.linear_cross_entropy(hidden[0], model.output_weight, targets, reduction="none")


class ListCache:
    """The simplest cache: concatenation."""

    def __init__(self, num_layers: int) -> None:
        self.layers: list = [None] * num_layers
        self.length = 0

    def append(self, layer, key, value):
        if self.layers[layer] is not None:
            key, value = (torch.cat(pair, dim=1) for pair in zip(self.layers[layer], (key, value), strict=True))
        self.layers[layer] = key, value
        return key, value


@every_config
def test_loss_of_a_document_does_not_depend_on_its_neighbours(name, device):
    model = decoder(CONFIGS[name], device)
    document = tokens(1, 9, device=device)
    alone = losses(model, document, [9])
    for before, after, seed in ((7, 5, 2), (7, 5, 3), (0, 12, 4), (12, 0, 5)):
        others = tokens(1, before + after, seed=seed, device=device)
        ids = torch.cat([others[:, :before], document, others[:, before:]], dim=1)
        lengths = [length for length in (before, 9, after) if length]
        packed = losses(model, ids, lengths)[before : before + 9]
        # Only the shapes of the matmuls differ: float32 rounding.
        torch.testing.assert_close(packed, alone, rtol=0, atol=1e-5)


@every_config
def test_gradient_of_a_document_does_not_reach_its_neighbours(name):
    """Exactly: tokens of other documents get a gradient of zero."""
    model = decoder(CONFIGS[name])
    ids = torch.arange(30).unsqueeze(0)  # distinct tokens, so that embedding rows belong to one document
    if CONFIGS[name].tie_word_embeddings:
        loss = model(ids, position_ids=positions([10, 20]), mask=ColumnMask.causal_document([10, 20]))[0, :10].sum()
    else:
        loss = losses(model, ids, [10, 20])[:10].sum()
    loss.backward()
    touched = model.embed_tokens.weight.grad.abs().sum(dim=1) > 0
    assert touched[:9].all()
    assert not touched[10:].any()


@every_config
def test_cached_and_uncached_hidden_states_agree(name, device):
    model = decoder(CONFIGS[name], device).eval()
    ids = tokens(2, 11, device=device)
    with torch.no_grad():
        whole = model(ids)
        cache = ListCache(SHAPE["num_hidden_layers"])
        parts = []
        for part in ids.split([5, 1, 1, 3, 1], dim=1):
            parts.append(model(part, cache=cache))
            cache.length += part.shape[1]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-5)


@every_config
def test_activation_checkpointing_changes_no_bit(name):
    results = []
    for enabled in (False, True):
        model = decoder(CONFIGS[name])
        model.activation_checkpointing = enabled
        losses(model, tokens(1, 20), [8, 12]).sum().backward()
        load = model.expert_load()
        results.append([p.grad for p in model.parameters()] + ([] if load is None else [load]))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_activation_checkpointing_keeps_fewer_tensors():
    def saved_bytes(enabled: bool) -> int:
        model = decoder(DENSE)
        model.activation_checkpointing = enabled
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(t.nbytes), t)[1], lambda t: t):
            model(tokens(1, 64))
        return sum(sizes)

    assert saved_bytes(True) < 0.5 * saved_bytes(False)


@every_config
def test_initialisation_follows_the_generator_alone(name):
    first, second, third = (Decoder(CONFIGS[name]) for _ in range(3))
    before = torch.random.get_rng_state()
    first.initialize(torch.Generator().manual_seed(5))
    second.initialize(torch.Generator().manual_seed(5))
    third.initialize(torch.Generator().manual_seed(6))
    assert torch.equal(before, torch.random.get_rng_state())
    same, other = first.state_dict(), third.state_dict()
    assert all(torch.equal(tensor, same[key]) for key, tensor in second.state_dict().items())
    assert any(not torch.equal(tensor, other[key]) for key, tensor in same.items())


def test_initial_scales():
    config = DecoderConfig(**{**SHAPE, "hidden_size": 256, "num_hidden_layers": 8}, attention_bias=True)
    model = Decoder(config)
    layer = model.layers[3]
    assert layer.self_attn.q_proj.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert layer.self_attn.o_proj.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert layer.mlp.down_proj.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert torch.equal(layer.input_layernorm.weight, torch.ones(256))
    assert not layer.self_attn.q_proj.bias.any()
    experts = Decoder(CONFIGS["gpt_oss"]).layers[0].mlp.experts
    assert not experts.gate_up_proj_bias.any()
    assert not experts.down_proj_bias.any()
    assert experts.gate_up_proj.std().item() == pytest.approx(0.02, rel=0.1)
    assert experts.down_proj.std().item() == pytest.approx(0.02 / 2, rel=0.1)


@pytest.mark.parametrize("mode", ["parameters", "autocast"])
@every_config
def test_bfloat16_trains_close_to_float32(name, mode):
    ids, lengths = tokens(1, 24), [10, 14]
    exact = decoder(CONFIGS[name])
    reference = losses(exact, ids, lengths)
    model = decoder(CONFIGS[name], dtype=torch.bfloat16 if mode == "parameters" else torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode == "autocast"):
        ours = losses(model, ids, lengths)
    assert ours.dtype == torch.float32
    # bfloat16 keeps 8 bits; a token near a routing boundary may change experts, so compare the mean loss.
    assert ours.mean().item() == pytest.approx(reference.mean().item(), rel=0.02)
    ours.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@every_config
def test_flops_per_token_counts_the_matmuls_that_run(name):
    config = CONFIGS[name]
    model = decoder(config)
    ids = tokens(1, 32)
    with FlopCounterMode(display=False) as counter:
        hidden = model(ids)
        ops.linear_cross_entropy(hidden[0], model.output_weight, ids[0], reduction="sum").backward()
    matmuls = sum(
        flops
        for op, flops in counter.get_flop_counts()["Global"].items()
        if str(op) in ("aten.mm", "aten.addmm", "aten.addmm_")
    )
    # `addmm_` into an output is not a known op of the counter: the head's weight gradient is added by hand.
    head = 2 * config.vocab_size * config.hidden_size * ids.numel()
    dims = config.head_dim + config.value_head_dim
    attention = 6 * config.num_attention_heads * dims * config.num_hidden_layers
    assert matmuls + head == pytest.approx(model.flops_per_token(0.0) * ids.numel(), rel=1e-12)
    if config.sliding_window is None:
        assert model.flops_per_token(10.0) - model.flops_per_token(0.0) == pytest.approx(10.0 * attention)
    else:  # one layer of two sees 4 keys at most
        assert model.flops_per_token(10.0) - model.flops_per_token(0.0) == pytest.approx(7.0 * attention)
        within = model.flops_per_token(10.0, lambda window: window - 1.0)
        assert within - model.flops_per_token(0.0) == pytest.approx((10.0 + 3.0) / 2 * attention)


def test_parameters_and_tied_head():
    tied, untied = Decoder(CONFIGS["qwen3-window"]), Decoder(DENSE)
    assert tied.output_weight is tied.embed_tokens.weight
    assert untied.output_weight is untied.lm_head.weight
    assert untied.num_parameters() == sum(tensor.numel() for tensor in untied.state_dict().values())
    hidden = torch.randn(2, 3, 32)
    torch.testing.assert_close(untied.logits(hidden), hidden @ untied.lm_head.weight.T)


def test_nothing_is_allocated_on_meta():
    huge = {**SHAPE, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "vocab_size": 128_256}
    with torch.device("meta"):
        model = Decoder(DecoderConfig(**huge))
    assert model.num_parameters() > 5e10
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_balance_updates_follow_the_training_load():
    model = decoder(CONFIGS["dots1"])
    ids = tokens(1, 32)
    with torch.no_grad():
        model(ids)
    model.eval()(ids)
    assert model.expert_load() is None  # neither counts as training
    model.train()(ids)
    model(ids)
    load = model.expert_load()
    assert load.shape == (2, 4)
    assert load.sum(dim=1).tolist() == [2 * 32 * 2] * 2
    model.update_balance(rate=0.25)
    bias = model.layers[0].mlp.gate.correction_bias
    assert torch.equal(bias, 0.25 * torch.sign(load[0].float().mean() - load[0]))
    assert model.expert_load() is None
    model.update_balance(rate=0.25)
    assert torch.equal(bias, model.layers[0].mlp.gate.correction_bias)


def test_selection_bias_keeps_float32():
    model = decoder(CONFIGS["dots1"], dtype=torch.bfloat16)
    assert model.layers[0].mlp.gate.weight.dtype == torch.bfloat16
    assert model.layers[0].mlp.gate.correction_bias.dtype == torch.float32


def test_auxiliary_loss_is_zero_unless_configured():
    model = decoder(CONFIGS["dots1"])
    model(tokens(1, 8))
    assert model.auxiliary_loss().item() == 0.0
    config = DecoderConfig(
        **SHAPE, **EXPERTS, model_type="qwen3_moe", output_router_logits=True, router_aux_loss_coef=0.5
    )
    model = decoder(config)
    model(tokens(1, 8))
    assert 0.5 * 1.9 < model.auxiliary_loss().item() < 0.5 * 4  # K = 2 at balance, at most X = 4
    model.update_balance()  # no selection bias in this family: nothing to do
    assert models.DecoderConfig.from_hf(config.to_hf()) == config
