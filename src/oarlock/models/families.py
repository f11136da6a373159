"""The model families: in what their decoders differ, and how transformers spells it in config.json.

A family is named by `model_type`. Fields that all families share (hidden_size, ...) are not listed here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from oarlock.ops.routing import Scoring

WindowStyle = Literal["none", "all layers", "layer_types", "alternating"]


@dataclass(frozen=True)
class Family:
    """What `model_type` implies."""

    architecture: str
    """Class name in transformers."""
    defaults: Mapping[str, Any]
    """Values that transformers takes where config.json leaves a field out."""
    qk_norm: bool = False
    """RMS norm over the head dim of queries and keys, before RoPE."""
    rope_interleaved: bool = False
    """RoPE rotates neighbours (2i, 2i + 1) instead of (i, i + D / 2)."""
    latent_attention: bool = False
    """Keys and values are made from one low-rank latent, queries maybe from another (MLA)."""
    attention_sink: bool = False
    """The softmax of each head has one more logit, a parameter, without a value."""
    output_bias: bool = True
    """o_proj has a bias where q, k and v have one."""
    attention_bias: bool | None = None
    """Fixed presence of the attention biases; None where config.json chooses."""
    mlp_bias: bool | None = False
    """The same for the MLP."""
    windows: WindowStyle = "none"
    """Which layers can have a sliding window; alternating is layer_types where every other layer has one by default."""
    window_switch: bool = True
    """`use_sliding_window` turns the window on; without it, `sliding_window` alone does."""
    scoring: Scoring | None = None
    """Router of the sparse layers; None for a dense family."""
    selection_bias: bool = False
    """The router has a bias that moves the choice of experts only (e_score_correction_bias)."""
    router_bias: bool = False
    """The router's logits have a bias."""
    clamped_experts: bool = False
    """Every layer has experts; they have biases and a clamped activation, and their weights are stored stacked."""
    always_shared: bool = False
    """A sparse layer has at least one shared expert."""
    sparse_fields: tuple[str, ...] = ()
    """Our names of the expert fields that the family has; the others keep their defaults."""
    spelling: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Our field name → config.json's, where they differ. Several where versions of transformers differ."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """config.json fields that must have this value (or be absent): the other values are not implemented."""
    silent: frozenset[str] = frozenset()
    """config.json fields that say nothing about the computation."""
    ignored_weights: tuple[str, ...] = ()
    """Prefixes of tensors that transformers, too, leaves out when it loads; {num_layers} stands for their number."""


_SPARSE_FIELDS = (
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "output_router_logits",
    "router_aux_loss_coef",
)
_DENSE_DEFAULTS: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_QWEN_DEFAULTS = {
    **_DENSE_DEFAULTS,
    "max_position_embeddings": 32768,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "use_sliding_window": False,
}
_ERNIE_DEFAULTS = {
    **_DENSE_DEFAULTS,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

_DEEPSEEK_SPARSE_FIELDS = (
    *_SPARSE_FIELDS,
    "num_shared_experts",
    "norm_topk_prob",
    "routed_scaling_factor",
    "n_group",
    "topk_group",
)
_DEEPSEEK_SPELLING = {"num_experts": ("n_routed_experts",), "num_shared_experts": ("n_shared_experts",)}

FAMILIES: dict[str, Family] = {
    "llama": Family(
        architecture="LlamaForCausalLM",
        defaults={**_DENSE_DEFAULTS, "max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2},
        mlp_bias=None,
    ),
    "qwen2": Family(
        architecture="Qwen2ForCausalLM",
        defaults=_QWEN_DEFAULTS,
        output_bias=False,
        attention_bias=True,
        windows="layer_types",
    ),
    "qwen3": Family(
        architecture="Qwen3ForCausalLM",
        defaults={**_QWEN_DEFAULTS, "head_dim": 128},
        qk_norm=True,
        windows="layer_types",
    ),
    "qwen3_moe": Family(
        architecture="Qwen3MoeForCausalLM",
        defaults={
            **_QWEN_DEFAULTS,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "norm_topk_prob": False,
            "router_aux_loss_coef": 0.001,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
        qk_norm=True,
        windows="all layers",
        scoring="softmax",
        sparse_fields=(*_SPARSE_FIELDS, "norm_topk_prob"),
        spelling={"num_experts": ("num_experts", "num_local_experts")},
    ),
    "ernie4_5": Family(
        architecture="Ernie4_5ForCausalLM",
        defaults={**_ERNIE_DEFAULTS, "num_key_value_heads": 2, "head_dim": 128},
        rope_interleaved=True,
        mlp_bias=None,
        fixed={"use_rmsnorm": True},
    ),
    "ernie4_5_moe": Family(
        architecture="Ernie4_5_MoeForCausalLM",
        defaults={
            **_ERNIE_DEFAULTS,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 1536,
            "num_experts": 64,
            "num_experts_per_tok": 6,
            "num_shared_experts": 2,
            "router_norm_min": 1e-12,
            "router_aux_loss_coef": 0.001,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": -1,
            "moe_layer_interval": 1,
        },
        rope_interleaved=True,
        attention_bias=False,
        scoring="softmax",
        selection_bias=True,
        sparse_fields=(*_SPARSE_FIELDS, "num_shared_experts", "router_norm_min"),
        spelling={
            "num_experts": ("moe_num_experts",),
            "num_experts_per_tok": ("moe_k",),
            "num_shared_experts": ("moe_num_shared_experts",),
            "router_norm_min": ("moe_norm_min",),
        },
        fixed={"use_rmsnorm": True, "use_bias": False},
        ignored_weights=("model.mtp",),
    ),
    "dots1": Family(
        architecture="Dots1ForCausalLM",
        defaults={
            **_DENSE_DEFAULTS,
            "max_position_embeddings": 2048,
            "num_key_value_heads": 32,
            "moe_intermediate_size": 1408,
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.0,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 0,
            "sliding_window": 4096,
            "max_window_layers": 62,
        },
        qk_norm=True,
        windows="layer_types",
        window_switch=False,
        scoring="sigmoid",
        selection_bias=True,
        always_shared=True,
        sparse_fields=_DEEPSEEK_SPARSE_FIELDS,
        spelling=_DEEPSEEK_SPELLING,
    ),
    "deepseek_v3": Family(
        architecture="DeepseekV3ForCausalLM",
        defaults={
            **_DENSE_DEFAULTS,
            "max_position_embeddings": 4096,
            "num_key_value_heads": 128,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "kv_lora_rank": 512,
            "q_lora_rank": 1536,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "moe_intermediate_size": 2048,
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "num_shared_experts": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "n_group": 8,
            "topk_group": 4,
            "first_k_dense_replace": 3,
        },
        rope_interleaved=True,
        latent_attention=True,
        scoring="sigmoid",
        selection_bias=True,
        always_shared=True,
        sparse_fields=_DEEPSEEK_SPARSE_FIELDS,
        spelling=_DEEPSEEK_SPELLING,
        fixed={
            "rope_interleave": True,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "moe_layer_freq": 1,
        },
        silent=frozenset(
            {
                "aux_loss_alpha",
                "ep_size",
                "num_mtp_layers",
                "num_nextn_predict_layers",
                "qk_head_dim",
                "seq_aux",
            }
        ),
        ignored_weights=("model.layers.{num_layers}.",),  # the layer that predicts one more token
    ),
    "gpt_oss": Family(
        architecture="GptOssForCausalLM",
        defaults={
            **_DENSE_DEFAULTS,
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150_000.0,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
            "attention_bias": True,
            "sliding_window": 128,
            "num_experts": 128,
            "num_experts_per_tok": 4,
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
            "router_aux_loss_coef": 0.001,
        },
        attention_sink=True,
        windows="alternating",
        window_switch=False,
        scoring="softmax",
        router_bias=True,
        clamped_experts=True,
        sparse_fields=(*_SPARSE_FIELDS, "swiglu_alpha", "swiglu_limit"),
        spelling={"num_experts": ("num_local_experts",), "moe_intermediate_size": ("intermediate_size",)},
        silent=frozenset({"experts_per_token", "initial_context_length"}),
    ),
}


def family(model_type: object) -> Family:
    """The family of a `model_type`; ValueError naming the supported ones."""
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(f"model_type {model_type!r} is not supported; supported: {', '.join(FAMILIES)}")
    return FAMILIES[model_type]
