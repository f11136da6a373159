"""config.json of transformers, read into our field names and written back.

Both spellings of RoPE are read: `rope_theta` + `rope_scaling` (transformers 4) and `rope_parameters` (5); both are
written. A field that changes the architecture in a way that is not implemented is refused, never skipped.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oarlock.models.families import Family, family

if TYPE_CHECKING:
    from oarlock.models.config import DecoderConfig

_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_PLAIN = (
    *_SIZES,
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
    "initializer_range",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)
# Values under which a field changes nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "attention_dropout": (0, None),
    "hidden_dropout_prob": (0, None),
    "attention_probs_dropout_prob": (0, None),
    "partial_rotary_factor": (1, None),
    "compression_config": (None,),
}
# quant_method → transformers' configuration that can turn the weights back.
_DEQUANTISERS = {"mxfp4": "Mxfp4Config", "fp8": "FineGrainedFP8Config"}
# Fields that say nothing about the computation.
_SILENT = {
    "architectures",
    "auto_map",
    "chunk_size_feed_forward",
    "dtype",
    "id2label",
    "is_encoder_decoder",
    "label2id",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "pretraining_tp",
    "problem_type",
    "return_dict",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "_name_or_path",
}
_WINDOW = {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"}
_ROPE = {"rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings"}
_PLACEMENT = {
    "qwen3_moe": {"decoder_sparse_step", "mlp_only_layers"},
    "ernie4_5_moe": {"moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"},
    "dots1": {"first_k_dense_replace"},
    "deepseek_v3": {"first_k_dense_replace"},
}
_BIAS_FIELDS = {
    "llama": ("attention_bias", "mlp_bias"),
    "qwen3": ("attention_bias",),
    "qwen3_moe": ("attention_bias",),
    "dots1": ("attention_bias",),
    "deepseek_v3": ("attention_bias",),
    "gpt_oss": ("attention_bias",),
}
_LATENT = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


# ---- reading ---------------------------------------------------------------------------------------------------------


def fields_from_hf(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `DecoderConfig` for a config.json; see `DecoderConfig.from_hf`."""
    model_type = fields.get("model_type")
    kind = family(model_type)
    assert isinstance(model_type, str)
    for name in _SIZES:
        if fields.get(name) is None:
            raise ValueError(f"config.json of a {model_type} model lacks {name}")
    _refuse_unimplemented(fields, kind)

    def read(name: str) -> Any:
        """The field in any of its spellings, or the value transformers would take."""
        given = {spelled: fields[spelled] for spelled in _spellings(kind, name) if spelled in fields}
        values = list(given.values()) or [kind.defaults.get(name)]
        if any(value != values[0] for value in values):
            raise ValueError(f"config.json contradicts itself: {given}")
        return values[0]

    known = {"model_type": model_type} | {name: read(name) for name in _PLAIN}
    known["rope_theta"], known["rope_scaling"] = _read_rope(fields, kind, read)
    known |= {name: bool(read(name)) for name in _BIAS_FIELDS.get(model_type, ())}
    if model_type == "ernie4_5":
        known["attention_bias"] = known["mlp_bias"] = bool(fields.get("use_bias", False))
    if kind.latent_attention:
        known |= {name: read(name) for name in _LATENT} | {"head_dim": 0}  # transformers' head_dim is the part of RoPE
    known["sliding_window"], known["layer_types"] = _read_windows(fields, kind, read)
    if kind.scoring is not None:
        known |= {name: read(name) for name in kind.sparse_fields}
        known["sparse_layers"] = _read_sparse_layers(model_type, read)
        if not known["sparse_layers"]:
            known["num_experts"] = 0
    _mention_unknown(fields, kind, model_type)
    return {name: value for name, value in known.items() if value is not None}


def _refuse_quantised(fields: Mapping[str, Any]) -> None:
    quantisation = fields.get("quantization_config")
    if quantisation is None:
        return
    problem = f"quantization_config = {quantisation!r} is not supported: Oarlock computes with the full weights"
    method = quantisation.get("quant_method") if isinstance(quantisation, Mapping) else None
    if reader := _DEQUANTISERS.get(str(method)):
        problem += (
            ". Write them once with transformers: AutoModelForCausalLM.from_pretrained(FOLDER, "
            f"quantization_config={reader}(dequantize=True)).save_pretrained(NEW_FOLDER)"
        )
    raise ValueError(problem)


def _refuse_unimplemented(fields: Mapping[str, Any], kind: Family) -> None:
    _refuse_quantised(fields)
    allowed = _NEUTRAL | {name: (value, None) for name, value in kind.fixed.items()}
    for name, values in allowed.items():
        if name in fields and fields[name] not in values:
            supported = ", ".join(repr(value) for value in values)
            raise ValueError(f"{name} = {fields[name]!r} is not supported; supported: {supported}")
    if kind.windows == "none":
        if fields.get("sliding_window") is not None:
            raise ValueError(f"sliding_window = {fields['sliding_window']} is not part of {fields['model_type']}")
        if "sliding_attention" in (fields.get("layer_types") or ()):
            raise ValueError(f"layer_types with sliding_attention are not part of {fields['model_type']}")


def _read_rope(fields: Mapping[str, Any], kind_of_model: Family, read: Any) -> tuple[float, dict[str, Any] | None]:
    given = fields.get("rope_scaling") or fields.get("rope_parameters")
    scaling = dict(given or kind_of_model.defaults.get("rope_scaling", {}))
    if nested := [name for name, value in scaling.items() if isinstance(value, Mapping)]:
        raise ValueError(f"rope_parameters per layer type ({', '.join(nested)}) are not supported; give one flat set")
    theta = float(scaling.pop("rope_theta", read("rope_theta")))
    legacy_kind = scaling.pop("type", "default")
    kind = scaling.pop("rope_type", legacy_kind)
    if scaling.pop("partial_rotary_factor", 1) != 1:
        raise ValueError("partial_rotary_factor other than 1 is not supported")
    if kind == "default":
        if scaling:
            raise ValueError(f"rope_type 'default' takes no {', '.join(sorted(scaling))}")
        return theta, None
    if kind in ("llama3", "yarn"):
        original = fields.get("original_max_position_embeddings", read("max_position_embeddings"))
        scaling.setdefault("original_max_position_embeddings", original)
    return theta, {"rope_type": kind, **scaling}


def _read_windows(fields: Mapping[str, Any], kind: Family, read: Any) -> tuple[int | None, tuple[str, ...] | None]:
    if kind.windows == "none":
        return None, None
    switched_on = bool(read("use_sliding_window")) if kind.window_switch else True
    window = read("sliding_window") if switched_on else None
    layers = fields.get("layer_types")
    if kind.windows == "layer_types" and layers is None and window is not None:
        first = read("max_window_layers")
        layers = ["sliding_attention" if i >= first else "full_attention" for i in range(fields["num_hidden_layers"])]
    if kind.windows == "alternating" and layers is None:
        layers = alternating(fields["num_hidden_layers"])
    if layers is not None and "sliding_attention" not in layers:
        if kind.windows == "all layers" and window is not None:
            raise ValueError(f"sliding_window = {window} applies to all layers, but layer_types say full_attention")
        window = None
    return window, None if layers is None else tuple(layers)


def alternating(num_layers: int) -> tuple[str, ...]:
    """Every other layer with a sliding window, the first one too."""
    return tuple("full_attention" if i % 2 else "sliding_attention" for i in range(num_layers))


def _read_sparse_layers(model_type: str, read: Any) -> tuple[int, ...]:
    layers = range(read("num_hidden_layers"))
    if not read("num_experts"):
        return ()
    if model_type == "qwen3_moe":
        step, dense = read("decoder_sparse_step"), read("mlp_only_layers") or []
        return tuple(i for i in layers if i not in dense and (i + 1) % step == 0)
    if model_type == "ernie4_5_moe":
        start, end, interval = (read(f"moe_layer_{name}") for name in ("start_index", "end_index", "interval"))
        return _every(len(layers), start, len(layers) - 1 if end == -1 else end, interval)
    return tuple(i for i in layers if i >= (read("first_k_dense_replace") or 0))


def _mention_unknown(fields: Mapping[str, Any], kind: Family, model_type: str) -> None:
    known = {*_PLAIN, *_NEUTRAL, *_SILENT, "quantization_config", *_WINDOW, *_ROPE, *kind.fixed, *kind.silent}
    known |= {"attention_bias", "mlp_bias", "use_bias", *(_LATENT if kind.latent_attention else ())}
    known |= _PLACEMENT.get(model_type, set())
    known |= {spelled for name in kind.sparse_fields for spelled in _spellings(kind, name)}
    if unknown := sorted(set(fields) - known):
        warnings.warn(f"config.json fields without a meaning for {model_type}: {', '.join(unknown)}", stacklevel=4)


def _spellings(kind: Family, name: str) -> tuple[str, ...]:
    """Names under which config.json may hold one of our fields."""
    return tuple(dict.fromkeys((*kind.spelling.get(name, ()), name)))


def _every(num_layers: int, start: int, end: int, interval: int) -> tuple[int, ...]:
    """ERNIE's rule for layers with experts."""
    return tuple(i for i in range(num_layers) if start <= i <= end and (i + 1) % interval == 0)


# ---- writing ---------------------------------------------------------------------------------------------------------


def fields_to_hf(config: DecoderConfig) -> dict[str, Any]:
    """A config.json for a `DecoderConfig`; see `DecoderConfig.to_hf`."""
    kind = config.family
    fields: dict[str, Any] = {"model_type": config.model_type, "architectures": [kind.architecture]}
    for name in _PLAIN + kind.sparse_fields:
        fields |= dict.fromkeys(kind.spelling.get(name, (name,)), getattr(config, name))
    if kind.latent_attention:
        del fields["head_dim"]
        fields |= {name: getattr(config, name) for name in _LATENT} | {"rope_interleave": True}
    fields |= {"hidden_act": "silu", "attention_dropout": 0.0, "use_cache": True}
    rope = {"rope_type": "default", **(config.rope_scaling or {})}
    fields["rope_theta"] = config.rope_theta
    fields["rope_scaling"] = dict(config.rope_scaling) if config.rope_scaling else None
    fields["rope_parameters"] = {"rope_theta": config.rope_theta, **rope}
    fields |= {name: getattr(config, name) for name in _BIAS_FIELDS.get(config.model_type, ())}
    if config.model_type.startswith("ernie4_5"):
        fields["use_bias"] = config.attention_bias
    fields |= _written_windows(config, kind) | _written_sparse_layers(config)
    return fields


def _written_windows(config: DecoderConfig, kind: Family) -> dict[str, Any]:
    if kind.windows == "none":
        return {}
    fields: dict[str, Any] = {"sliding_window": config.sliding_window}
    if kind.window_switch:
        fields["use_sliding_window"] = config.sliding_window is not None
    if kind.windows in ("layer_types", "alternating"):
        fields["layer_types"] = list(config.layer_types)
    if kind.windows == "alternating" and config.sliding_window is None:
        fields["sliding_window"] = kind.defaults["sliding_window"]  # transformers wants one even if no layer uses it
    if kind.windows == "layer_types":
        types = list(config.layer_types)
        first = types.index("sliding_attention") if "sliding_attention" in types else len(types)
        fields["max_window_layers"] = first
    return fields


def _written_sparse_layers(config: DecoderConfig) -> dict[str, Any]:
    sparse, num_layers = config.sparse_layers, config.num_hidden_layers
    if config.model_type == "qwen3_moe":
        return {"decoder_sparse_step": 1, "mlp_only_layers": [i for i in range(num_layers) if not config.is_sparse(i)]}
    if config.model_type == "ernie4_5_moe":
        start, end = (sparse[0], sparse[-1]) if sparse else (num_layers, num_layers)
        for interval in range(1, num_layers + 1):
            if _every(num_layers, start, end, interval) == sparse:
                return {
                    "moe_layer_start_index": start,
                    "moe_layer_end_index": end,
                    "moe_layer_interval": interval,
                }
        raise ValueError(f"sparse_layers {sparse} are not evenly spaced as ernie4_5_moe needs")
    if "first_k_dense_replace" in _PLACEMENT.get(config.model_type, ()):
        first = sparse[0] if sparse else num_layers
        if sparse != tuple(range(first, num_layers)):
            raise ValueError(f"sparse_layers {sparse} are not the last layers as {config.model_type} needs")
        return {"first_k_dense_replace": first}
    return {}
