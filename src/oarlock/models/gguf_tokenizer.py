"""The tokenizer in a GGUF file's metadata as tokenizer.json and tokenizer_config.json, which `tokenizers` reads.

Two models are known: `gpt2`, byte-pair merges of bytes, whose rule for cutting text has a name (`tokenizer.ggml.pre`),
and `llama`, SentencePiece's, whose merges follow from the scores of the pieces.

Source: ggml-org/llama.cpp, src/llama-vocab.cpp (the rules by name); google/sentencepiece (the scores' meaning).
"""

import json
from typing import Any

from oarlock.checkpoint.gguf_header import GgufHeader

_CONTROL, _USER_DEFINED = 3, 4
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|"
    + (r"\s*[\r\n]+|\s+(?!\S)|\s+")
)
_BLANK = "▁"


def tokenizer_files(header: GgufHeader, max_length: int) -> tuple[dict[str, bytes], str]:
    """File -> content; and, where the tokenizer's kind is not known, no files and the reason.

    Raises:
        CheckpointError: malformed metadata.
    """
    metadata = header.metadata
    model, rule = metadata.get("tokenizer.ggml.model"), str(metadata.get("tokenizer.ggml.pre", "default"))
    tokens = [str(token) for token in header.array("tokenizer.ggml.tokens")]
    kinds = header.array("tokenizer.ggml.token_type") if "tokenizer.ggml.token_type" in metadata else []
    if model == "gpt2" and rule in _RULES:
        merges = [str(merge).split(" ", 1) for merge in header.array("tokenizer.ggml.merges")]
        content = _byte_level(tokens, merges, rule)
    elif model == "llama":
        scores = [float(score) for score in header.array("tokenizer.ggml.scores")]
        content = _sentencepiece(tokens, scores, bool(metadata.get("tokenizer.ggml.add_space_prefix", True)))
    else:
        return {}, f"tokenizer: its kind is not known ({model}, {rule}); copy tokenizer.json from the original model"
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    special = {}
    for name, key in names.items():
        number = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(number, int) and 0 <= number < len(tokens):
            special[f"{name}_token"] = tokens[number]
    content["added_tokens"] = [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kinds[index] == _CONTROL,
        }
        for index, token in enumerate(tokens)
        if index < len(kinds) and kinds[index] in (_CONTROL, _USER_DEFINED)
    ]
    with_bos = metadata.get("tokenizer.ggml.add_bos_token", model == "llama" or rule == "llama-bpe")
    if with_bos and "bos_token" in special:
        content["post_processor"] = _opened_by(special["bos_token"], tokens.index(special["bos_token"]))
    config = special | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    if isinstance(template := metadata.get("tokenizer.chat_template"), str):
        config["chat_template"] = template
    return {"tokenizer.json": _json(content), "tokenizer_config.json": _json(config)}, ""


# ---- the two models --------------------------------------------------------------------------------------------------


def _byte_level(tokens: list[str], merges: list[list[str]], rule: str) -> dict[str, Any]:
    normalizer, cuts = _RULES[rule]
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": rule == "llama-bpe",
        "vocab": {token: index for index, token in enumerate(tokens)},
        "merges": merges,
    }
    return _whole(normalizer, {"type": "Sequence", "pretokenizers": cuts}, _bytes(True), model)


def _sentencepiece(tokens: list[str], scores: list[float], space_prefix: bool) -> dict[str, Any]:
    vocab = {token: index for index, token in enumerate(tokens)}
    score = dict(zip(tokens, scores, strict=True))
    pairs = []
    for piece in vocab:
        halves = ((piece[:k], piece[k:]) for k in range(1, len(piece)))
        pairs += sorted(
            ((score[piece], left, right) for left, right in halves if left in vocab and right in vocab),
            key=lambda pair: (vocab[pair[1]], vocab[pair[2]]),
        )
    merges = [[left, right] for _, left, right in sorted(pairs, key=lambda pair: -pair[0])]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _BLANK}
    prepend = [{"type": "Prepend", "prepend": _BLANK}] if space_prefix else []
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _BLANK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if space_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": "<unk>" if "<unk>" in vocab else None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": merges,
    }
    normalizer = {"type": "Sequence", "normalizers": [*prepend, replace]}
    return _whole(normalizer, None, {"type": "Sequence", "decoders": decoders}, model)


# ---- parts of tokenizer.json -----------------------------------------------------------------------------------------


def _bytes(with_rule: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": with_rule}


def _cut(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _whole(normalizer: Any, pre_tokenizer: Any, decoder: Any, model: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


def _opened_by(token: str, index: int) -> dict[str, Any]:
    """Every text begins with this token."""
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    texts = [{"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB")]
    return {
        "type": "TemplateProcessing",
        "single": [first, texts[0]],
        "pair": [first, *texts],
        "special_tokens": {token: {"id": token, "ids": [index], "tokens": [token]}},
    }


_DIGITS = {"type": "Digits", "individual_digits": True}
_RULES: dict[str, tuple[dict[str, Any] | None, list[dict[str, Any]]]] = {
    "default": (None, [_bytes(True)]),
    "gpt-2": (None, [_bytes(True)]),
    "smollm": (None, [_DIGITS, _bytes(True)]),
    "llama-bpe": (None, [_cut(_WORDS.format(digits="{1,3}")), _bytes(False)]),
    "qwen2": ({"type": "NFC"}, [_cut(_WORDS.format(digits="")), _bytes(False)]),
}


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
