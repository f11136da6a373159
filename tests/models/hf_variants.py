"""Configurations of transformers that the tests of models go through."""

from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
QWEN3_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 16}
ERNIE_MOE = {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16}
DOTS1 = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
DEEPSEEK_V3 = {
    **DOTS1,
    "n_routed_experts": 8,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_group": 4,
    "topk_group": 2,
}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 32}
GPT_OSS = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "sliding_window": 5}

# name → (model_type, config.json fields beside SIZES)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied-biased-llama3": (
        "llama",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3},
    ),
    "llama-linear-rope": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}, "num_key_value_heads": 4},
    ),
    "llama-yarn": (
        "llama",
        {"rope_parameters": {**YARN, "beta_fast": 8.0, "beta_slow": 0.5, "truncate": False, "attention_factor": 1.3}},
    ),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3-window-biased": (
        "qwen3",
        {
            "head_dim": 8,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen3_moe": ("qwen3_moe", {**QWEN3_MOE, "mlp_only_layers": [1]}),
    "qwen3_moe-norm-window": (
        "qwen3_moe",
        {
            **QWEN3_MOE,
            "norm_topk_prob": True,
            "decoder_sparse_step": 2,
            "use_sliding_window": True,
            "sliding_window": 6,
        },
    ),
    "ernie4_5": ("ernie4_5", {"head_dim": 16}),
    "ernie4_5-biased": ("ernie4_5", {"head_dim": 8, "use_bias": True, "tie_word_embeddings": False}),
    "ernie4_5_moe": ("ernie4_5_moe", ERNIE_MOE),
    "ernie4_5_moe-interval": (
        "ernie4_5_moe",
        {**ERNIE_MOE, "moe_layer_interval": 2, "moe_layer_start_index": 0, "moe_num_shared_experts": 0},
    ),
    "dots1": ("dots1", {**DOTS1, "norm_topk_prob": True, "routed_scaling_factor": 2.5}),
    "dots1-groups": ("dots1", {**DOTS1, "n_routed_experts": 6, "n_group": 3, "topk_group": 2}),
    "deepseek_v3": ("deepseek_v3", DEEPSEEK_V3),
    "deepseek_v3-yarn-biased": (
        "deepseek_v3",
        {
            **DEEPSEEK_V3,
            "q_lora_rank": None,
            "attention_bias": True,
            "rope_parameters": {**YARN, "beta_fast": 4.0, "mscale": 0.8, "mscale_all_dim": 1.5},
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "tie_word_embeddings": True,
        },
    ),
    "gpt_oss": ("gpt_oss", GPT_OSS),
    "gpt_oss-tied-unbiased": (
        "gpt_oss",
        {
            **GPT_OSS,
            "num_experts_per_tok": 3,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "layer_types": ["full_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
            "swiglu_limit": 0.3,
        },
    ),
}
