"""From the configuration to the objects of a run: data, model, the device they live on."""

import os
from dataclasses import replace

import torch

from oarlock import models
from oarlock.models import Decoder, DecoderConfig
from oarlock.models.families import Family
from oarlock.train.config import DataConfig, ModelConfig, TrainConfig
from oarlock.train.data import PreparedData, prepare


def choose_device(name: str, key: str = "train.device") -> torch.device:
    """`auto` is CUDA if present (the device of this rank under torchrun), else the CPU.

    Args:
        name: `auto` or a device of torch (`cpu`, `cuda`, `cuda:1`, ...).
        key: who asks, for messages.

    Raises:
        ValueError: no device of torch, or one that this machine does not have.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"{key} = {name!r}: no device of torch; use auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda":
        num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= num_devices:
            raise ValueError(f"{key} = {name!r}: torch sees {num_devices or 'no'} CUDA devices here; use cpu or auto")
        torch.cuda.set_device(device)
    return device


def prepare_data(data: DataConfig, model: ModelConfig) -> PreparedData:
    """Tokenise the corpus, or find it in the cache; a model that is continued brings its tokenizer."""
    return prepare(replace(data, tokenizer=data.tokenizer or model.directory), data.cache)


def decoder_config(model: ModelConfig, vocab_size: int, sequence_length: int) -> DecoderConfig:
    """The architecture that the [model] section describes.

    Args:
        model: the section.
        vocab_size: of the tokenizer; a config.json or folder may have more embeddings, not fewer.
        sequence_length: tokens S per sequence; becomes max_position_embeddings of a new model.

    Raises:
        FileNotFoundError: no such config.json.
        ValueError: it cannot be read, or the vocabulary or the sequences do not fit the model.
    """
    if given := model.directory or model.config:
        config = models.read_config(given)
    else:
        config = DecoderConfig.from_hf(_hugging_face_fields(model, vocab_size, sequence_length))
    if config.vocab_size < vocab_size:
        if model.directory:
            advice = "give the model's own tokenizer in data.tokenizer"
        else:
            advice = f"raise vocab_size in {model.config}, or lower data.vocab_size (or choose another data.tokenizer)"
        raise ValueError(
            f"vocabulary mismatch: the tokenizer has {vocab_size} entries, the model {config.vocab_size} embeddings; "
            + advice
        )
    if sequence_length > config.max_position_embeddings:
        raise ValueError(
            f"data.sequence_length = {sequence_length} is longer than the model's "
            f"max_position_embeddings = {config.max_position_embeddings}; shorten the sequences"
        )
    return config


def build_model(config: TrainConfig, architecture: DecoderConfig, device: torch.device) -> Decoder:
    """The model to train: read from `model.directory`, or new with weights drawn from `train.seed`."""
    if config.model.directory:
        model = models.load(config.model.directory, dtype=torch.float32, device=device)
    else:
        model = Decoder(architecture)
        model.initialize(torch.Generator().manual_seed(config.train.seed))
        model.to(device)
    model.activation_checkpointing = config.train.activation_checkpointing
    return model


def _hugging_face_fields(model: ModelConfig, vocab_size: int, sequence_length: int) -> dict:
    fields = {
        "model_type": model.family,
        "vocab_size": vocab_size,
        "max_position_embeddings": sequence_length,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.head_dim,
        "rope_theta": model.rope_theta,
        "tie_word_embeddings": model.tie_word_embeddings,
    }
    if model.sliding_window:
        fields |= {"use_sliding_window": True, "sliding_window": model.sliding_window, "max_window_layers": 0}
    kind = models.FAMILIES[model.family]
    if kind.latent_attention:
        fields |= {
            "num_key_value_heads": model.num_attention_heads,
            "kv_lora_rank": model.kv_lora_rank,
            "q_lora_rank": model.q_lora_rank or None,
            "qk_nope_head_dim": model.head_dim,
            "qk_rope_head_dim": model.qk_rope_head_dim,
            "v_head_dim": model.head_dim,
        }
    if kind.windows == "alternating":
        fields |= {"rope_scaling": {"rope_type": "default"}}  # not the stretched one of the published models
    if kind.scoring is not None:
        fields |= _expert_fields(model, kind)
    elif model.num_experts:
        raise ValueError(f"model.family = {model.family!r} has no experts: set model.num_experts = 0")
    return fields


def _expert_fields(model: ModelConfig, kind: Family) -> dict[str, int | bool]:
    """As the family spells them; the sigmoid families begin with a dense layer, as DeepSeek's models do."""
    values = {
        "num_experts": model.num_experts or 8,
        "num_experts_per_tok": model.num_experts_per_tok,
        "num_shared_experts": model.num_shared_experts,
        "moe_intermediate_size": model.moe_intermediate_size,
    }
    fields = {
        kind.spelling.get(name, (name,))[0]: value for name, value in values.items() if name in kind.sparse_fields
    }
    if kind.scoring == "sigmoid":
        dense = min(1, model.num_hidden_layers - 1)
        fields |= {"norm_topk_prob": True, "n_group": 1, "topk_group": 1, "first_k_dense_replace": dense}
    return fields
