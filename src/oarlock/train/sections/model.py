"""What is trained."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What is trained: a new decoder from the fields below, or from a config.json, or an existing folder."""

    directory: str = ""
    """Hugging Face folder to continue from (config.json, safetensors, tokenizer.json); replaces the fields below."""
    config: str = ""
    """A config.json to build a new, randomly initialised model from; replaces the fields below."""
    family: Literal[
        "llama",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "ernie4_5",
        "ernie4_5_moe",
        "dots1",
        "deepseek_v3",
        "gpt_oss",
    ] = "qwen3"
    """Architecture, named as `model_type` in a Hugging Face config.json."""
    hidden_size: int = 256
    """Width E of the residual stream."""
    intermediate_size: int = 704
    """Width of the SwiGLU layer."""
    num_hidden_layers: int = 4
    """Number of decoder blocks."""
    num_attention_heads: int = 4
    """Number of query heads."""
    num_key_value_heads: int = 4
    """Number of key and value heads; divides num_attention_heads (deepseek_v3 has no such number)."""
    head_dim: int = 64
    """Width of a head (deepseek_v3: of a value, and of the part of queries and keys without RoPE)."""
    rope_theta: float = 10000.0
    """Base of the rotary position embedding."""
    tie_word_embeddings: bool = True
    """Share the input embedding with the output projection."""
    sliding_window: int = 0
    """Keys a query sees, itself included; 0 = all (qwen2, qwen3, dots1; gpt_oss: in every other layer, 0 = 128)."""
    kv_lora_rank: int = 128
    """deepseek_v3: width of the latent that keys and values are made from."""
    q_lora_rank: int = 0
    """deepseek_v3: width of the latent that queries are made from; 0 = none."""
    qk_rope_head_dim: int = 32
    """deepseek_v3: width of the part of queries and keys with RoPE."""
    num_experts: int = 0
    """Experts of a mixture-of-experts family; 0 = 8."""
    num_experts_per_tok: int = 2
    """Experts that each token is sent to."""
    num_shared_experts: int = 1
    """Experts that see every token (ernie4_5_moe, dots1, deepseek_v3)."""
    moe_intermediate_size: int = 256
    """Width of one expert."""
