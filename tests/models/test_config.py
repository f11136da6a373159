"""config.json: both spellings are read, what is not implemented is refused by name, what is written is read back."""

import dataclasses
import json
import re

import pytest

from models.hf_variants import DEEPSEEK_V3, DOTS1, ERNIE_MOE, GPT_OSS, LLAMA3, QWEN3_MOE, SIZES, VARIANTS
from oarlock.models import FAMILIES, DecoderConfig

LLAMA = {"model_type": "llama", **SIZES}
OWN_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
LATENT = {"kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 3}


def read(model_type="llama", **fields) -> DecoderConfig:
    return DecoderConfig.from_hf({**SIZES, "model_type": model_type, **fields})


@pytest.mark.parametrize("variant", VARIANTS)
def test_written_configurations_are_read_back_the_same(variant):
    model_type, fields = VARIANTS[variant]
    config = read(model_type, **fields)
    assert DecoderConfig.from_hf(json.loads(json.dumps(config.to_hf()))) == config


@pytest.mark.parametrize("variant", VARIANTS)
def test_transformers_reads_what_is_written(variant):
    from transformers import AutoConfig

    model_type, fields = VARIANTS[variant]
    written = read(model_type, **fields).to_hf()
    theirs = AutoConfig.for_model(model_type, **{k: v for k, v in written.items() if k != "model_type"})
    expected = AutoConfig.for_model(model_type, **{**SIZES, **fields})
    # Spellings that say the same: schedules of sparse layers, windows that no layer uses.
    equivalent = {"decoder_sparse_step", "mlp_only_layers", "sliding_window", "max_window_layers"}
    equivalent |= {f"moe_layer_{name}" for name in ("start_index", "end_index", "interval")}
    equivalent |= {"architectures", "transformers_version"}
    for name, value in expected.to_dict().items():
        if name not in equivalent:
            assert getattr(theirs, name) == value, name


def test_both_spellings_of_rope():
    old = {"rope_theta": 1000.0, "rope_scaling": {k: v for k, v in LLAMA3.items() if k != "rope_theta"}}
    older = {"rope_theta": 1000.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert read(**old) == read(rope_parameters=LLAMA3)
    assert read(**older) == read(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0})
    assert read(rope_theta=500.0).rope_theta == 500.0
    assert read("ernie4_5").rope_theta == 500_000.0
    bare = {k: v for k, v in LLAMA3.items() if k != "original_max_position_embeddings"}
    assert read(rope_parameters=bare).rope_scaling["original_max_position_embeddings"] == 128


def test_defaults_of_absent_fields_are_those_of_transformers():
    from transformers import AutoConfig

    for model_type in FAMILIES:
        sizes = {"vocab_size": 97, "hidden_size": 512, "intermediate_size": 48, "num_hidden_layers": 4}
        many_heads = {"deepseek_v3": 128, "gpt_oss": 8} | dict.fromkeys(("qwen2", "qwen3", "qwen3_moe", "dots1"), 32)
        heads = {"num_attention_heads": many_heads.get(model_type, 4)}
        experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}
        fields = {**sizes, **heads, **(experts if model_type == "dots1" else {})}
        ours = DecoderConfig.from_hf({"model_type": model_type, **fields})
        theirs = AutoConfig.for_model(model_type, **fields)
        for name in ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings"):
            assert getattr(ours, name) == getattr(theirs, name), (model_type, name)
        for name in ("bos_token_id", "eos_token_id", "pad_token_id", "initializer_range"):
            assert getattr(ours, name) == getattr(theirs, name), (model_type, name)
        expected = {"rope_theta": ours.rope_theta, **(ours.rope_scaling or {"rope_type": "default"})}
        assert theirs.rope_parameters == expected, model_type
        if hasattr(theirs, "attention_bias") and model_type != "qwen2":
            assert ours.attention_bias == theirs.attention_bias, model_type
        if hasattr(theirs, "head_dim"):
            assert ours.rope_head_dim == theirs.head_dim, model_type
        if hasattr(theirs, "kv_lora_rank"):
            for name in ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "v_head_dim", "n_group", "topk_group"):
                assert getattr(ours, name) == getattr(theirs, name), name
            assert ours.head_dim == theirs.qk_head_dim
            assert ours.is_sparse(theirs.first_k_dense_replace) > ours.is_sparse(theirs.first_k_dense_replace - 1)
        if ours.num_experts:
            assert ours.num_experts == getattr(theirs, "n_routed_experts", None) or theirs.num_experts
            assert ours.num_experts_per_tok == theirs.num_experts_per_tok
            assert ours.moe_intermediate_size == getattr(theirs, "moe_intermediate_size", theirs.intermediate_size)


def test_both_names_of_the_number_of_experts():
    fields = {k: v for k, v in QWEN3_MOE.items() if k != "num_experts"}
    assert read("qwen3_moe", **fields, num_local_experts=4) == read("qwen3_moe", **fields, num_experts=4)
    with pytest.raises(ValueError, match="contradicts itself"):
        read("qwen3_moe", **fields, num_local_experts=4, num_experts=8)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported; supported: llama, qwen2, qwen3"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported; supported: 'silu', 'swish'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type 'longrope' is not supported; supported: default, lin"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "gamma": 1}},
            "takes ['factor', 'original_max_position_embeddings'] and may have ['attention_factor', 'beta_fast', 'bet",
        ),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_type 'linear' takes ['factor']; got []"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "per layer type (full_attention)"),
        ({"attention_dropout": 0.1}, "attention_dropout = 0.1"),
        ({"quantization_config": {"bits": 4}}, "quantization_config = {'bits': 4}"),
        (
            {"model_type": "gpt_oss", **GPT_OSS, "quantization_config": {"quant_method": "mxfp4"}},
            "AutoModelForCausalLM.from_pretrained(FOLDER, quantization_config=Mxfp4Config(dequantize=True)).save_pre",
        ),
        ({"quantization_config": {"quant_method": "fp8"}}, "FineGrainedFP8Config(dequantize=True)"),
        ({"sliding_window": 128}, "sliding_window = 128 is not part of llama"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"num_key_value_heads": 3}, "num_attention_heads (4) must be a multiple of num_key_value_heads (3)"),
        ({"hidden_size": 30}, "hidden_size (30) is not a multiple of num_attention_heads (4)"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer; got 0"),
        ({"model_type": "qwen3", "layer_types": ["chunked_attention"] * 3}, "['chunked_attention'] are not supported"),
        (
            {"model_type": "qwen3", "layer_types": ["sliding_attention"] * 3},
            "layers with sliding_attention need sliding_window >= 1; got None",
        ),
        ({"model_type": "ernie4_5_moe", **ERNIE_MOE, "use_bias": True}, "use_bias = True is not supported"),
        ({"model_type": "ernie4_5_moe", **ERNIE_MOE, "moe_k": 5}, "num_experts_per_tok (5) exceeds num_experts (4)"),
        ({"model_type": "dots1", **DOTS1, "n_group": 4}, "4 experts do not form 4 equal groups of at least two"),
        (
            {"model_type": "deepseek_v3", **DEEPSEEK_V3, "topk_group": 5},
            "2 experts of a token cannot come from 5 of 4 groups of 2",
        ),
        ({"model_type": "deepseek_v3", **DEEPSEEK_V3, "scoring_func": "softmax"}, "scoring_func = 'softmax' is not"),
        (
            {"model_type": "deepseek_v3", **DEEPSEEK_V3, "num_key_value_heads": 2},
            "has as many key heads as query heads",
        ),
        ({"model_type": "deepseek_v3", **DEEPSEEK_V3, "qk_rope_head_dim": 7}, "qk_rope_head_dim must be even for RoPE"),
        ({"model_type": "deepseek_v3", **DEEPSEEK_V3, "kv_lora_rank": 0}, "kv_lora_rank must be a positive integer"),
        ({"model_type": "deepseek_v3", **DEEPSEEK_V3, "n_shared_experts": 0}, "deepseek_v3 has at least one shared"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        DecoderConfig.from_hf({**LLAMA, **fields})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen2", "attention_bias": False}, "qwen2 has attention_bias = True; got False"),
        ({"model_type": "qwen3", "mlp_bias": True}, "qwen3 has mlp_bias = False"),
        ({"model_type": "ernie4_5", "attention_bias": True}, "must be equal"),
        ({"num_experts": 4}, "llama has no num_experts; got 4"),
        ({"kv_lora_rank": 4}, "llama has no kv_lora_rank; got 4"),
        ({"swiglu_limit": 6.0}, "llama has no swiglu_limit; got 6.0"),
        ({"model_type": "gpt_oss"}, "gpt_oss has experts in every layer; got num_experts = 0"),
        ({"model_type": "gpt_oss", **OWN_EXPERTS, "sparse_layers": (1,)}, "gpt_oss has experts in every layer"),
        (
            {"model_type": "gpt_oss", **OWN_EXPERTS, "moe_intermediate_size": 20},
            "moe_intermediate_size (20) must be intermediate_size (48)",
        ),
        (
            {"model_type": "deepseek_v3", **LATENT, "num_key_value_heads": 4, "head_dim": 8},
            "head_dim must be qk_nope_head_dim + qk_rope_head_dim (4 + 2); got 8",
        ),
        ({"head_dim": 5}, "head_dim must be even for RoPE; got 5"),
        ({"model_type": "qwen3", "sliding_window": 4, "layer_types": ["full_attention"] * 3}, "no layer of layer_typ"),
        (
            {"model_type": "qwen3", "sliding_window": 4, "layer_types": ["full_attention"]},
            "names 1 layers; there are 3",
        ),
    ],
)
def test_contradictions_are_named(changes, message):
    fields = {k: v for k, v in SIZES.items() if not k.endswith("token_id")}
    with pytest.raises(ValueError, match=re.escape(message)):
        DecoderConfig(**{**fields, **changes})


def test_fields_without_a_meaning_are_mentioned():
    with pytest.warns(UserWarning, match="without a meaning for llama: alibi, moe_capacity"):
        read(alibi=True, moe_capacity=[1])


def test_uneven_sparse_layers_cannot_be_written_for_ernie():
    config = read("ernie4_5_moe", **ERNIE_MOE)
    uneven = dataclasses.replace(config, num_hidden_layers=5, layer_types=(), sparse_layers=(0, 1, 4))
    with pytest.raises(ValueError, match="not evenly spaced"):
        uneven.to_hf()


def test_windows_of_gpt_oss_take_turns():
    sizes = {k: v for k, v in SIZES.items() if not k.endswith("token_id")}
    config = DecoderConfig(model_type="gpt_oss", sliding_window=8, **sizes, **OWN_EXPERTS)
    assert [config.window(layer) for layer in range(3)] == [8, None, 8]
    assert config.windows == (8,)
    assert config.moe_intermediate_size == config.intermediate_size
    assert config.attention_bias
    assert config == DecoderConfig.from_hf(config.to_hf())
    full = DecoderConfig(model_type="gpt_oss", **sizes, **OWN_EXPERTS)
    assert full.windows == ()
    assert full == DecoderConfig.from_hf(full.to_hf())


def test_the_published_deepseek_v3_is_read_without_a_warning():
    fields = {
        **{"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0},
        **{"auto_map": {}, "aux_loss_alpha": 0.001, "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1},
        **{"first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02},
        **{"intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840},
        **{"model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8},
        **{"n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 128},
        **{"num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128},
        **{"num_nextn_predict_layers": 1, "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128},
        **{"qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_theta": 10000, "routed_scaling_factor": 2.5},
        **{"scoring_func": "sigmoid", "seq_aux": True, "tie_word_embeddings": False, "topk_group": 4},
        **{"topk_method": "noaux_tc", "torch_dtype": "bfloat16", "use_cache": True, "v_head_dim": 128},
        "rope_scaling": {
            **{"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0},
            **{"original_max_position_embeddings": 4096, "type": "yarn"},
        },
        **{"transformers_version": "4.33.1", "vocab_size": 129280},
    }
    config = DecoderConfig.from_hf(fields)
    assert config.sparse_layers == tuple(range(3, 61))
    assert (config.head_dim, config.rope_head_dim, config.value_head_dim) == (192, 64, 128)
    assert config == DecoderConfig.from_hf(config.to_hf())


def test_the_published_gpt_oss_is_read_without_a_warning():
    fields = {
        **{"architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0},
        **{"eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880},
        **{"initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880},
        **{"layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072},
        **{"model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24},
        **{"num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": False, "pad_token_id": 199999},
        **{"rms_norm_eps": 1e-05, "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128},
        "rope_scaling": {
            **{"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096},
            **{"rope_type": "yarn", "truncate": False},
        },
        **{"swiglu_limit": 7.0, "tie_word_embeddings": False, "transformers_version": "4.55.0.dev0"},
        **{"use_cache": True, "vocab_size": 201088},
    }
    config = DecoderConfig.from_hf(fields)
    shorter = {name: fields[name] for name in ("model_type", "hidden_size", "intermediate_size", "vocab_size")}
    shorter |= {
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_local_experts": 32,
        "router_aux_loss_coef": 0.9,
    }
    assert config == DecoderConfig.from_hf(shorter | {"eos_token_id": 200002, "pad_token_id": 199999})
