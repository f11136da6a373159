"""Which tokens begin and end a document, as the files of a Hugging Face folder name them."""

import json
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer

TOKENIZER_CONFIG = "tokenizer_config.json"
BY_TOKENIZER = (TOKENIZER_CONFIG, "special_tokens_map.json", "config.json", "generation_config.json")
"""The tokenizer's own word first: what surrounds the documents of a training text."""
BY_MODEL = ("generation_config.json", "config.json", TOKENIZER_CONFIG, "special_tokens_map.json")
"""The model's word first: what it was trained to stop at, which may be several tokens."""


def marker_ids(folder: Path, tokenizer: Tokenizer, kind: Literal["bos", "eos"], order: tuple[str, ...]) -> list[int]:
    """Ids of the tokens that begin (`bos`) or end (`eos`) a document, from the first file that names any.

    Args:
        folder: holds some of the four files.
        tokenizer: tokens that it does not have are passed over.
        kind: which marker.
        order: the files to look at.

    Returns:
        The ids, [] if no file names one. Their order is the file's.

    Raises:
        ValueError: a file that holds no JSON object.
    """
    for name in order:
        content = read_object(folder / name)
        token, ids = content.get(f"{kind}_token"), content.get(f"{kind}_token_id")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and (found := tokenizer.token_to_id(text)) is not None:
            return [found]
        numbers = [number for number in (ids if isinstance(ids, list) else [ids]) if isinstance(number, int)]
        if known := [number for number in numbers if tokenizer.id_to_token(number) is not None]:
            return known
    return []


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object")
    return content
