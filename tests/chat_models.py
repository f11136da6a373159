"""Tiny models with chat templates, written by transformers: real folders for post-training."""

import json
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from oarlock.train.data import train_tokenizer

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_MARKED = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
        {{- '\\n' }}
    {%- else %}
        {{- message.content | trim }}{{ '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
LLAMA = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim + '\\n\\n' %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + (system if loop.first else '') + message['content'] | trim + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message['content'] | trim + ' ' + eos_token }}
    {%- endif %}
{%- endfor %}
"""
# As Qwen3's: thoughts are kept in the last answer only, where an empty one is added.
FORGETFUL = """\
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' %}
        {%- if loop.last %}{%- set content = '<think>\\n\\n</think>\\n\\n' + content %}{%- endif %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
TEMPLATES = {"chatml": CHATML, "marked": CHATML_MARKED, "llama": LLAMA, "forgetful": FORGETFUL}
SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>")


def write_model(
    folder: Path, template: str | None = "marked", *, window: int | None = None, positions: int = 256, seed: int = 0
) -> Path:
    """A Qwen3 of two layers with a tokenizer of its own and one of TEMPLATES (or none)."""
    text = "the oar moves the ship against the river stone light hand quiet morning water "
    backend = train_tokenizer([text * 3], 300).backend
    backend.encode_special_tokens = False
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    if template is not None:
        tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL_TOKENS)})
        tokenizer.chat_template = TEMPLATES[template]
        if template != "llama":
            tokenizer.eos_token = "<|im_end|>"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer) + 3,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=positions,
        initializer_range=0.2,
        tie_word_embeddings=True,
        use_sliding_window=window is not None,
        sliding_window=window,
        max_window_layers=0,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def write_lines(path: Path, records: list[dict]) -> Path:
    """A .jsonl file."""
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return path
