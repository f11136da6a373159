"""Models of transformers with our attention against the same models with transformers' own."""

import pytest
import torch
import transformers

from oarlock.attention import ColumnMask
from oarlock.models import transformers_door

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
CONFIGS = {
    "llama": ("LlamaConfig", {}),
    "qwen2 with windows": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "mistral": ("MistralConfig", {"sliding_window": 7}),
    "llama4 with chunks": (
        "Llama4TextConfig",
        {
            "attention_chunk_size": 6,
            "intermediate_size_mlp": 48,
            "num_local_experts": 1,
            "interleave_moe_layer_step": 5,
            "layer_types": ["chunked_attention", "full_attention", "chunked_attention"],
            "no_rope_layers": [1, 0, 1],
            "head_dim": 8,
        },
    ),
    "deepseek_v3 with latents": (
        "DeepseekV3Config",
        {
            **{"kv_lora_rank": 16, "q_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6},
            **{"num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1},
            **{"topk_group": 1, "first_k_dense_replace": 2, "moe_intermediate_size": 16},
        },
    ),
    "gpt-oss with sinks": (
        "GptOssConfig",
        {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8, "sliding_window": 6},
    ),
}


@pytest.fixture(autouse=True, scope="module")
def _registered():
    transformers_door.register()


def build(name, implementation):
    kind, fields = CONFIGS[name]
    config = getattr(transformers, kind)(**{**SIZES, **fields})
    config._attn_implementation = implementation
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.15)
    return model.float().eval()


def pair(name):
    oracle = "eager" if "sinks" in name else "sdpa"
    ours, theirs = build(name, transformers_door.NAME), build(name, oracle)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def close(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)  # float32 through three layers


@pytest.mark.parametrize("name", CONFIGS)
class TestModels:
    def test_logits_and_a_training_step(self, name):
        ours, theirs = pair(name)
        ids = torch.randint(1, 97, (2, 23))
        losses = [model(ids, labels=ids, use_cache=False).loss for model in (ours, theirs)]
        close(*losses)
        for loss in losses:
            loss.backward()
        for (key, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            if a.grad is not None or b.grad is not None:
                torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4, msg=lambda m, key=key: f"{key}: {m}")

    def test_packed_documents_by_position_ids(self, name):
        ours, theirs = pair(name)
        ids = torch.randint(1, 97, (2, 24))
        position_ids = torch.cat([torch.arange(n) for n in (9, 15)])[None].repeat(2, 1)
        position_ids[1] = torch.cat([torch.arange(n) for n in (3, 20, 1)])
        got, wanted = (m(ids, position_ids=position_ids, use_cache=False).logits for m in (ours, theirs))
        alone = ours(ids[:1, 9:], use_cache=False).logits
        if name != "gpt-oss with sinks":  # whose model keeps the positions from its masks, and leaks across documents
            close(got, wanted)
        close(got[:1, 9:], alone)

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_padding(self, name, side):
        ours, theirs = pair(name)
        ids = torch.randint(1, 97, (3, 21))
        attention_mask = torch.ones_like(ids)
        for row, pad in enumerate((0, 4, 11)):
            attention_mask[row, slice(0, pad) if side == "left" else slice(21 - pad, 21)] = 0
        position_ids = (attention_mask.cumsum(1) - 1).clamp(min=0)
        arguments = {"attention_mask": attention_mask, "position_ids": position_ids}
        got, wanted = (model(ids, **arguments).logits for model in (ours, theirs))
        real = attention_mask.bool()
        close(got[real], wanted[real])

    def test_generation_with_a_cache(self, name):
        ours, theirs = pair(name)
        ids = torch.randint(1, 97, (2, 9))
        attention_mask = torch.ones_like(ids)
        attention_mask[1, :4] = 0
        options = {
            "attention_mask": attention_mask,
            "max_new_tokens": 14,
            "do_sample": False,
            "return_dict_in_generate": True,
            "output_logits": True,
        }
        got, wanted = (model.generate(ids, **options) for model in (ours, theirs))
        assert torch.equal(got.sequences, wanted.sequences)
        close(torch.stack(got.logits), torch.stack(wanted.logits))


def test_generation_with_a_static_cache():
    ours, theirs = pair("llama")
    ids = torch.randint(1, 97, (2, 9))
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 6, "do_sample": False}
    got = ours.generate(ids, cache_implementation="static", disable_compile=True, **options)
    assert torch.equal(got, theirs.generate(ids, **options))


def test_packing_is_seen_even_beside_a_cache():
    """transformers' own attention silently sees across documents there."""
    ours = build("llama", transformers_door.NAME)
    ids = torch.randint(1, 97, (1, 20))
    position_ids = torch.cat([torch.arange(8), torch.arange(12)])[None]
    wanted = ours(ids, position_ids=position_ids, use_cache=False).logits
    close(ours(ids, position_ids=position_ids, use_cache=True).logits, wanted)
    cu = torch.tensor([0, 8, 20], dtype=torch.int32)
    got = ours(ids, position_ids=position_ids, cu_seq_lens_q=cu, cu_seq_lens_k=cu, max_length_q=12, max_length_k=12)
    close(got.logits, wanted)


def test_dropout_trains_and_evaluates():
    model = build("llama", transformers_door.NAME)
    model.config.attention_dropout = 0.3
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.3
    ids = torch.randint(1, 97, (1, 20))
    evaluated = model(ids).logits
    model.train()
    torch.manual_seed(0)
    first = model(ids).logits
    torch.manual_seed(0)
    assert torch.equal(model(ids).logits, first)
    assert not torch.allclose(first, evaluated, atol=1e-3)


def test_dense_masks_of_the_user():
    ours, theirs = pair("llama")
    ids = torch.randint(1, 97, (1, 16))
    visible = ColumnMask.share_question([[6, 4, 6]]).to_dense()
    additive = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    wanted = theirs(ids, attention_mask=visible, use_cache=False).logits
    close(ours(ids, attention_mask=visible, use_cache=False).logits, wanted)
    close(ours(ids, attention_mask=additive, use_cache=False).logits, wanted)
    with pytest.raises(ValueError, match="does not fit a column mask"):
        ours(ids, attention_mask=visible & (torch.arange(16)[:, None] % 3 > 0), use_cache=False)
    with pytest.raises(ValueError, match="biases other than 0"):
        ours(ids, attention_mask=additive / 1e38, use_cache=False)


def test_functions_of_the_user_are_evaluated_exactly():
    from transformers.masking_utils import create_causal_mask

    config = build("llama", transformers_door.NAME).config
    inputs = torch.zeros(2, 30, 32)

    def frames(b, h, q, k):
        return q // 5 == k // 5

    arguments = {"attention_mask": None, "cache": None, "inputs_embeds": inputs}
    mask = create_causal_mask(config, or_mask_function=frames, **arguments)
    i, j = torch.arange(30)[:, None], torch.arange(30)[None]
    assert torch.equal(mask.to_dense(), ((j <= i) | (i // 5 == j // 5)).expand(2, 1, -1, -1))
    with pytest.raises(ValueError, match="the mask that this model asks of oarlock_flashmask does not fit"):
        create_causal_mask(config, and_mask_function=lambda b, h, q, k: (q - k) % 3 == 0, **arguments)


def test_what_it_does_not_compute_is_refused():
    config = transformers.Gemma2Config(**{**SIZES, "head_dim": 8})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=transformers_door.NAME)
    with pytest.raises(ValueError, match=r"Gemma2Attention caps its logits \(softcap\)"):
        model(torch.randint(1, 97, (1, 5)))
    layer = build("llama", transformers_door.NAME).model.layers[0].self_attn
    q = torch.zeros(1, 4, 3, 8)
    with pytest.raises(ValueError, match="no mask arrived at the causal layer LlamaAttention"):
        transformers_door.attention(layer, q, q, q, None)
    with pytest.raises(ValueError, match="no attention weights"):
        transformers_door.attention(layer, q, q, q, ColumnMask.full(3), output_attentions=True)
    out, _ = transformers_door.attention(layer, q, q, q, None, is_causal=False)
    assert out.shape == (1, 3, 4, 8)


def test_absence_of_transformers_is_said(monkeypatch):
    def refuse(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(transformers_door.importlib, "import_module", refuse)
    with pytest.raises(ImportError, match="needs transformers with AttentionMaskInterface"):
        transformers_door.register()
