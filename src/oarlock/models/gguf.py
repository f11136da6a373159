"""Models in GGUF files: their tensors under Hugging Face's names, and their metadata as config.json.

Files of the architectures llama, qwen2, qwen3 and qwen3moe. llama.cpp rotates neighbouring elements of a head and
Hugging Face's llama pairs i with i + D / 2, so a llama file has the rows of q and k in another order; that is undone.
"""

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oarlock.checkpoint.gguf import open_gguf
from oarlock.checkpoint.gguf_blocks import BLOCKS
from oarlock.checkpoint.gguf_header import Array, GgufHeader
from oarlock.checkpoint.renamed import renamed
from oarlock.checkpoint.source import TensorSource
from oarlock.models.config import DecoderConfig
from oarlock.models.gguf_tokenizer import tokenizer_files
from oarlock.ops.rotary import rope_frequencies

ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe"}
"""general.architecture -> model_type."""

_BLOCK = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
_QUANTISED = {block.name for block in BLOCKS.values()}
_FREQUENCIES = "rope_freqs.weight"
_LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


class GgufModel:
    """A model in a GGUF file.

    Args:
        path: the file.

    Raises:
        CheckpointError: malformed; ValueError: an architecture, a feature or a tensor that has no place in a Hugging
            Face folder; the message names it.
    """

    def __init__(self, path: Path) -> None:
        self.header = GgufHeader(path)
        architecture = self.header.metadata.get("general.architecture")
        if architecture not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise ValueError(
                f"{path}: the names of architecture {architecture!r} are not known (known: {known}); give a program "
                "from its names to Hugging Face's (oarlock inspect shows them)"
            )
        self.architecture = str(architecture)
        self.config = self._config()

    def program(self) -> str:
        """In the AOA language, from the file's names to those of a Hugging Face folder."""
        config = self.config
        lines = [
            "token_embd.weight -> model.embed_tokens.weight",
            "output_norm.weight -> model.norm.weight",
            "output.weight -> lm_head.weight, optional",
            f"{_FREQUENCIES} -> _, optional  # follow from the configuration",
        ]
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        for ours, theirs in _BLOCK.items():
            for kind, rest in (("weight", " i"), ("bias", "")):
                order = ""
                if self.architecture == "llama" and ours in heads:
                    order = f', rearrange="(h d two){rest} -> (h two d){rest}, h={heads[ours]}, two=2"'
                lines.append(f"blk.$L.{ours}.{kind} -> model.layers.$L.{theirs}.{kind}{order}, optional")
        if config.num_experts:
            lines += [
                f"blk.$L.ffn_{part}_exps.weight -> model.layers.$L.mlp.experts.*.{part}_proj.weight, stack=0, optional"
                f" where * in 0:{config.num_experts}"
                for part in ("gate", "up", "down")
            ]
        return "\n".join(lines) + "\n"

    def source(self, dtype: torch.dtype = torch.float32) -> TensorSource:
        """The tensors under Hugging Face's names; quantised ones become `dtype`.

        Raises:
            ValueError: tensors that have no such name.
        """
        source = renamed(open_gguf(self.header, dtype), self.program())
        if left := [name for name in source.tensors if name in self.header.tensors]:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise ValueError(f"{self.header.path}: {left[0]!r}{more} has no name in a {self.config.model_type} model")
        return source

    def files(self, dtype: str | None = None) -> tuple[dict[str, bytes], list[str]]:
        """config.json, generation_config.json and the tokenizer; and what could not be written, in words.

        Args:
            dtype: that config.json says; None = the one that most elements have.
        """
        config, metadata = self.config, self.header.metadata
        fields = config.to_hf() | {"torch_dtype": dtype or self._main_dtype()}
        ids = {name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        files = {
            "config.json": _json(fields),
            "generation_config.json": _json({name: value for name, value in ids.items() if value is not None}),
        }
        if "tokenizer.ggml.tokens" not in metadata:
            return files, ["tokenizer: the file has none"]
        tokenizer, problem = tokenizer_files(self.header, config.max_position_embeddings)
        return files | tokenizer, [problem] if problem else []

    def dequantised(self) -> list[str]:
        """Which types become floats, in words."""
        kinds = Counter(place.kind for place in self.header.tensors.values() if place.kind in _QUANTISED)
        return [f"dequantised: {count} tensors of {kind}" for kind, count in kinds.items()]

    def _main_dtype(self) -> str:
        sizes: Counter[str] = Counter()
        plain = {"F16": "float16", "BF16": "bfloat16", "F64": "float64"}
        for place in self.header.tensors.values():
            sizes[plain.get(place.kind, "float32")] += math.prod(place.shape)
        return sizes.most_common(1)[0][0]

    def _config(self) -> DecoderConfig:
        tensors, metadata = self.header.tensors, self.header.metadata
        model_type = ARCHITECTURES[self.architecture]
        embedding = tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise ValueError(f"{self.header.path}: it has no matrix token_embd.weight")
        heads = self._number("attention.head_count")
        hidden = self._number("embedding_length")
        width = self._number("attention.key_length", self._number("rope.dimension_count", hidden // heads))
        experts = self._number("expert_count", 0)
        if experts and model_type != "qwen3_moe":
            raise ValueError(f"{self.header.path}: {experts} experts in architecture {self.architecture!r} are unknown")
        sparse: dict[str, Any] = {}
        if experts:
            sparse = {
                "num_experts": experts,
                "num_experts_per_tok": self._number("expert_used_count"),
                "moe_intermediate_size": self._number("expert_feed_forward_length"),
                "norm_topk_prob": True,  # llama.cpp knows nothing else
            }
        ids: dict[str, Any] = {
            f"{name}_token_id": value
            for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
            if isinstance(value := metadata.get(f"tokenizer.ggml.{key}_token_id"), int)
        }
        try:
            config = DecoderConfig(
                model_type=model_type,
                vocab_size=embedding.shape[0],
                hidden_size=hidden,
                intermediate_size=self._number("feed_forward_length", sparse.get("moe_intermediate_size")),
                num_hidden_layers=self._number("block_count"),
                num_attention_heads=heads,
                num_key_value_heads=self._number("attention.head_count_kv", heads),
                head_dim=width,
                max_position_embeddings=self._number("context_length"),
                rms_norm_eps=_shortest(self._float("attention.layer_norm_rms_epsilon")),
                rope_theta=_shortest(self._float("rope.freq_base", 10_000.0)),
                tie_word_embeddings="output.weight" not in tensors,
                attention_bias=True if "blk.0.attn_q.bias" in tensors else None,
                mlp_bias="blk.0.ffn_gate.bias" in tensors,
                **sparse,
                **ids,
            )
            return self._with_scaling(config)
        except ValueError as error:
            raise ValueError(f"{self.header.path}: {error}") from None

    def _with_scaling(self, config: DecoderConfig) -> DecoderConfig:
        """The configuration with what the file says about RoPE."""
        kind = self.header.metadata.get(f"{self.architecture}.rope.scaling.type", "none")
        if _FREQUENCIES in self.header.tensors:
            [found] = open_gguf(self.header).read([_FREQUENCIES]).values()
            scaled = replace(config, rope_scaling={"rope_type": "llama3", **_LLAMA3, "factor": float(found.max())})
            frequencies = (
                rope_frequencies(config.head_dim, config.rope_theta, c.rope_scaling) for c in (config, scaled)
            )
            wanted = next(frequencies) / next(frequencies)
            if found.shape != wanted.shape or not torch.allclose(found, wanted, rtol=1e-5):
                raise ValueError(f"{_FREQUENCIES} are not those of Llama 3, which alone are known")
            return scaled
        if kind == "none":
            return config
        if kind not in ("linear", "yarn"):
            raise ValueError(f"rope.scaling.type {kind!r} is not known; none, linear and yarn are")
        scaling: dict[str, Any] = {"rope_type": kind, "factor": _shortest(self._float("rope.scaling.factor"))}
        if kind == "yarn":
            original = self._number("rope.scaling.original_context_length", config.max_position_embeddings)
            scaling["original_max_position_embeddings"] = original
        return replace(config, rope_scaling=scaling)

    def _number(self, key: str, default: int | None = None) -> int:
        """An integer of this architecture."""
        value = self.header.metadata.get(f"{self.architecture}.{key}", default)
        if not isinstance(value, int) or isinstance(value, bool):
            told = "a list, one per layer" if isinstance(value, Array) else repr(value)
            raise ValueError(f"{self.header.path}: {self.architecture}.{key} is {told}; one whole number is needed")
        return value

    def _float(self, key: str, default: float | None = None) -> float:
        value = self.header.metadata.get(f"{self.architecture}.{key}", default)
        if not isinstance(value, int | float):
            raise ValueError(f"{self.header.path}: {self.architecture}.{key} is {value!r}; a number is needed")
        return float(value)


def _shortest(value: float) -> float:
    """The shortest decimal that is this float32: 1e-05 instead of 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _json(fields: dict[str, Any]) -> bytes:
    return (json.dumps(fields, indent=2, ensure_ascii=False) + "\n").encode()
