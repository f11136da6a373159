"""The shape of a decoder. Field names are those of Hugging Face's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from oarlock.models.families import FAMILIES, Family, family
from oarlock.models.hf_config import alternating, fields_from_hf, fields_to_hf
from oarlock.ops import check_groups
from oarlock.ops.rotary import ROPE_TYPES

FULL_ATTENTION, SLIDING_ATTENTION = "full_attention", "sliding_attention"

_DERIVED = ("num_key_value_heads", "head_dim")
_LATENT = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_POSITIVE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    *_DERIVED,
)


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """A decoder of one of the families (see `FAMILIES`).

    Raises:
        ValueError: values that contradict each other or that the family does not have, each named.
    """

    model_type: str = "llama"
    """Family: decides QK-norm, RoPE layout, where biases may be, and the kind of router."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Width of the dense MLP."""
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 0
    """0: as many as attention heads."""
    head_dim: int = 0
    """Of queries and keys. 0: hidden_size / num_attention_heads; with latent attention, the sum of its two parts."""
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: Mapping[str, Any] | None = None
    """None, or `rope_type` linear, llama3 or yarn with its parameters (see `oarlock.ops.rope_tables`)."""
    tie_word_embeddings: bool = False
    """The output layer shares the embedding's weight."""
    attention_bias: bool | None = None
    """Biases of q, k, v (and o, except qwen2). None: False, True for qwen2 and gpt_oss."""
    mlp_bias: bool = False
    initializer_range: float = 0.02
    """Standard deviation of fresh weights."""

    sliding_window: int | None = None
    """A row of a sliding layer sees this many keys, itself included."""
    layer_types: tuple[str, ...] = ()
    """full_attention or sliding_attention per layer. Empty: all sliding if sliding_window is set (gpt_oss: every other
    one, from the first), else all full."""

    kv_lora_rank: int = 0
    """Width of the latent that keys and values are made from (deepseek_v3)."""
    q_lora_rank: int | None = None
    """Width of the queries' latent; None: queries are made from the hidden state itself."""
    qk_nope_head_dim: int = 0
    """Part of a query or key head without RoPE."""
    qk_rope_head_dim: int = 0
    """Part with RoPE; this part of the key is the same in all heads."""
    v_head_dim: int = 0

    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    """Width of one expert. gpt_oss has no other width: 0 is intermediate_size there."""
    num_shared_experts: int = 0
    """Experts that see every token, fused into one MLP of num_shared_experts × moe_intermediate_size."""
    sparse_layers: tuple[int, ...] = ()
    """Indices of the layers with experts. Empty: all layers if num_experts > 0."""
    norm_topk_prob: bool = True
    """The weights of a token's experts sum to 1 (before routed_scaling_factor). Always so for ernie4_5_moe."""
    router_norm_min: float = 1e-20
    """Lower bound of the sum they are divided by."""
    routed_scaling_factor: float = 1.0
    n_group: int = 1
    """Groups of experts, of which a token chooses topk_group before its experts."""
    topk_group: int = 1
    swiglu_alpha: float = 1.702
    """Of the experts of gpt_oss (see `oarlock.ops.clamped_swiglu`)."""
    swiglu_limit: float = 7.0
    output_router_logits: bool = False
    """Adds router_aux_loss_coef × balance loss to the training loss (transformers' switch for it)."""
    router_aux_loss_coef: float = 0.001

    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        kind = self.family
        for name in _POSITIVE:
            _check_positive(name, getattr(self, name), least=0 if name in _DERIVED else 1)
        self._fill_in(kind)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        if self.rope_head_dim % 2:
            name = "qk_rope_head_dim" if kind.latent_attention else "head_dim"
            raise ValueError(f"{name} must be even for RoPE; got {self.rope_head_dim}")
        _check_rope_scaling(self.rope_scaling)
        self._check_latents(kind)
        self._check_biases(kind)
        self._check_windows(kind)
        self._check_experts(kind)

    @property
    def family(self) -> Family:
        return family(self.model_type)

    @classmethod
    def from_hf(cls, config_json: Mapping[str, Any]) -> DecoderConfig:
        """From the contents of a config.json, in the spelling of transformers 4 or 5.

        Raises:
            ValueError: unknown model_type, a missing size, or a value that is not implemented (other activations,
                RoPE types, quantisation, ...), naming field, value and what is supported.
        """
        return cls(**fields_from_hf(config_json))

    def to_hf(self) -> dict[str, Any]:
        """A config.json that transformers 4 (from 4.53) and 5 read alike."""
        return fields_to_hf(self)

    @property
    def rope_head_dim(self) -> int:
        """Dims of a head that RoPE turns."""
        return self.qk_rope_head_dim or self.head_dim

    @property
    def value_head_dim(self) -> int:
        """Dims of a value head."""
        return self.v_head_dim or self.head_dim

    @property
    def cache_width(self) -> int:
        """Numbers that a cache keeps per token and layer: keys and values, or the latent and the shared key."""
        if self.family.latent_attention:
            return self.kv_lora_rank + self.qk_rope_head_dim
        return self.num_key_value_heads * (self.head_dim + self.value_head_dim)

    @property
    def windows(self) -> tuple[int, ...]:
        """The different sliding windows of the layers."""
        found = {self.window(layer) for layer in range(self.num_hidden_layers)}
        return tuple(sorted(window for window in found if window is not None))

    def window(self, layer: int) -> int | None:
        """Sliding window of a layer, None for full attention."""
        return self.sliding_window if self.layer_types[layer] == SLIDING_ATTENTION else None

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return layer in self.sparse_layers

    def _fill_in(self, kind: Family) -> None:
        """Replace the values that mean "derive it"."""
        layers = range(self.num_hidden_layers)
        everywhere = tuple(SLIDING_ATTENTION if self.sliding_window else FULL_ATTENTION for _ in layers)
        is_alternating = kind.windows == "alternating" and self.sliding_window
        if kind.latent_attention and not self.head_dim:
            object.__setattr__(self, "head_dim", self.qk_nope_head_dim + self.qk_rope_head_dim)
        if not self.head_dim and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) is not a multiple of num_attention_heads "
                f"({self.num_attention_heads}); give head_dim"
            )
        derived = {
            "num_key_value_heads": self.num_attention_heads,
            "head_dim": self.hidden_size // self.num_attention_heads,
            "layer_types": alternating(len(layers)) if is_alternating else everywhere,
            "sparse_layers": tuple(layers) if self.num_experts else (),
        }
        if kind.clamped_experts:
            derived["moe_intermediate_size"] = self.intermediate_size
        for name, value in derived.items():
            given = getattr(self, name)
            object.__setattr__(self, name, (tuple(given) if isinstance(given, list) else given) or value)
        if self.attention_bias is None:
            default = kind.attention_bias or kind.defaults.get("attention_bias", False)
            object.__setattr__(self, "attention_bias", default)

    def _check_latents(self, kind: Family) -> None:
        if not kind.latent_attention:
            for name in _LATENT:
                if value := getattr(self, name):
                    raise ValueError(f"{self.model_type} has no {name}; got {value}")
            return
        for name in _LATENT:
            if name != "q_lora_rank" or self.q_lora_rank is not None:
                _check_positive(name, getattr(self, name))
        if self.head_dim != self.qk_nope_head_dim + self.qk_rope_head_dim:
            raise ValueError(
                f"head_dim must be qk_nope_head_dim + qk_rope_head_dim ({self.qk_nope_head_dim} + "
                f"{self.qk_rope_head_dim}); got {self.head_dim}"
            )
        if self.num_key_value_heads != self.num_attention_heads:
            raise ValueError(
                f"{self.model_type} has as many key heads as query heads ({self.num_attention_heads}); got "
                f"num_key_value_heads = {self.num_key_value_heads}"
            )

    def _check_biases(self, kind: Family) -> None:
        for name, fixed in (("attention_bias", kind.attention_bias), ("mlp_bias", kind.mlp_bias)):
            if fixed is not None and getattr(self, name) != fixed:
                raise ValueError(f"{self.model_type} has {name} = {fixed}; got {getattr(self, name)}")
        if self.model_type == "ernie4_5" and self.attention_bias != self.mlp_bias:
            raise ValueError("ernie4_5 has one switch for all biases: attention_bias and mlp_bias must be equal")

    def _check_windows(self, kind: Family) -> None:
        if len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(f"layer_types names {len(self.layer_types)} layers; there are {self.num_hidden_layers}")
        if unknown := set(self.layer_types) - {FULL_ATTENTION, SLIDING_ATTENTION}:
            raise ValueError(
                f"layer_types {sorted(unknown)} are not supported; supported: {FULL_ATTENTION}, {SLIDING_ATTENTION}"
            )
        sliding = self.layer_types.count(SLIDING_ATTENTION)
        if sliding and (self.sliding_window is None or self.sliding_window < 1):
            raise ValueError(f"layers with sliding_attention need sliding_window >= 1; got {self.sliding_window}")
        if self.sliding_window is not None and not sliding:
            raise ValueError(f"sliding_window is {self.sliding_window} but no layer of layer_types uses it")
        if sliding and kind.windows == "none":
            raise ValueError(f"{self.model_type} has no sliding window; got sliding_window = {self.sliding_window}")
        if 0 < sliding < self.num_hidden_layers and kind.windows == "all layers":
            raise ValueError(f"{self.model_type} has a sliding window in all layers or in none")

    def _check_experts(self, kind: Family) -> None:
        for name, default in _sparse_defaults().items():
            if name not in kind.sparse_fields and (value := getattr(self, name)) != default:
                raise ValueError(f"{self.model_type} has no {name}; got {value!r}")
        if kind.clamped_experts and len(self.sparse_layers) != self.num_hidden_layers:
            raise ValueError(f"{self.model_type} has experts in every layer; got num_experts = {self.num_experts}")
        if kind.clamped_experts and self.moe_intermediate_size != self.intermediate_size:
            raise ValueError(
                f"{self.model_type} has no MLP but its experts: moe_intermediate_size ({self.moe_intermediate_size}) "
                f"must be intermediate_size ({self.intermediate_size})"
            )
        if not self.sparse_layers:
            return
        for name in ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "num_shared_experts"):
            _check_positive(name, getattr(self, name), least=0 if name == "num_shared_experts" else 1)
        if any(not 0 <= layer < self.num_hidden_layers for layer in self.sparse_layers):
            raise ValueError(
                f"sparse_layers {self.sparse_layers} must lie in the {self.num_hidden_layers} layers, 0 onwards"
            )
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(
                f"num_experts_per_tok ({self.num_experts_per_tok}) exceeds num_experts ({self.num_experts})"
            )
        check_groups(self.num_experts, self.num_experts_per_tok, self.n_group, self.topk_group)
        if kind.always_shared and not self.num_shared_experts:
            raise ValueError(f"{self.model_type} has at least one shared expert; got num_shared_experts = 0")


def _check_positive(name: str, value: object, least: int = 1) -> None:
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a positive integer; got {value!r}")


def _sparse_defaults() -> dict[str, Any]:
    """The expert fields with their defaults."""
    names = {name for kind in FAMILIES.values() for name in kind.sparse_fields}
    return {field.name: field.default for field in fields(DecoderConfig) if field.name in names}


# rope_type → (parameters that it needs, parameters that it may have).
_ROPE_PARAMETERS: dict[str, tuple[set[str], set[str]]] = {
    "linear": ({"factor"}, set()),
    "llama3": ({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}, set()),
    "yarn": (
        {"factor", "original_max_position_embeddings"},
        {"beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim"},
    ),
}


def _check_rope_scaling(scaling: Mapping[str, Any] | None) -> None:
    if scaling is None:
        return
    kind = scaling.get("rope_type")
    if kind not in _ROPE_PARAMETERS:
        raise ValueError(f"rope_type {kind!r} is not supported; supported: {', '.join(ROPE_TYPES)}")
    given, (needed, optional) = set(scaling) - {"rope_type"}, _ROPE_PARAMETERS[kind]
    if not needed <= given <= needed | optional:
        more = f" and may have {sorted(optional)}" if optional else ""
        raise ValueError(f"rope_type {kind!r} takes {sorted(needed)}{more}; got {sorted(given)}")
