"""Byte-level BPE: trained on the training documents, or read from a tokenizer.json; ids never depend on chunking."""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from oarlock.train.data.markers import BY_TOKENIZER, TOKENIZER_CONFIG, marker_ids

END_OF_DOCUMENT = "<|endoftext|>"
SMALLEST_VOCABULARY = 257  # every byte, and the end of a document
TOKENIZER_FILE, CONFIG_FILE = "tokenizer.json", TOKENIZER_CONFIG
_COMPANIONS = (
    CONFIG_FILE,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)
_CHUNK = 1 << 18  # characters encoded at a time
_LONGEST_WORD = 1024  # training takes time quadratic in the length of a word
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD}}}(?=\S)|\s{{{_LONGEST_WORD}}}(?=\s)")
# GPT's pre-tokenisation never joins a visible character with the blank after it, and never looks behind.
_SAFE_CUT = re.compile(r"(?<=\S)(?=[ \n])")


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer with the two markers that surround a document.

    `encode` gives the ids of the text alone; a special token spelled out in a text is encoded as plain text, so
    that no document can contain a marker.
    """

    backend: Tokenizer
    begin_id: int
    """Token before the first of a document (bos; the end token where a tokenizer has none)."""
    end_id: int
    """Token after the last of a document (eos)."""
    folder: Path | None = None
    """Where it was read from; None for a new one."""

    def __post_init__(self) -> None:
        self.backend.no_padding()
        self.backend.no_truncation()
        self.backend.encode_special_tokens = True

    @cached_property
    def vocab_size(self) -> int:
        """Largest id + 1: rows that an embedding needs."""
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without markers."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of several texts, in parallel threads."""
        return [encoding.ids for encoding in self.backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included; the inverse of `encode` for a byte-level tokenizer."""
        return self.backend.decode(list(ids), skip_special_tokens=False)

    def pieces(self, text: str) -> Iterator[str]:
        """Cut a long text where the cut cannot change its ids; not at all if this tokenizer gives no such guarantee."""
        return cut_safely(text, _CHUNK) if self._cuts_are_safe else iter([text])

    def digest(self) -> str:
        """Hash of everything that decides which ids a document gets."""
        content = f"{self.begin_id} {self.end_id} {self.backend.to_str()}"
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    def save(self, folder: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json (and what else was beside a loaded one) for transformers."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.folder is not None:
            for name in _COMPANIONS:
                if (self.folder / name).is_file():
                    shutil.copyfile(self.folder / name, folder / name)
        self.backend.save(str(folder / TOKENIZER_FILE))
        if not (folder / CONFIG_FILE).exists():
            config = {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": self.backend.id_to_token(self.begin_id),
                "eos_token": self.backend.id_to_token(self.end_id),
                "clean_up_tokenization_spaces": False,
            }
            (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    @cached_property
    def _cuts_are_safe(self) -> bool:
        content = json.loads(self.backend.to_str())
        splitter = content["pre_tokenizer"] or {}
        gpt = splitter.get("type") == "ByteLevel" and splitter.get("use_regex", True)
        # Text between added tokens is split apart before anything else; special ones are never looked for here.
        special = all(token["special"] for token in content["added_tokens"])
        return gpt and not splitter["add_prefix_space"] and special and content["normalizer"] is None


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> TextTokenizer:
    """Byte-level BPE with GPT's pre-tokenisation; the same texts always give the same bytes of tokenizer.json.

    Args:
        texts: training documents; streamed, only counts of distinct words are kept.
        vocab_size: entries, of which 256 are bytes and one is the end of a document. A small corpus may give fewer.

    Raises:
        ValueError: a vocabulary too small for the bytes.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        raise ValueError(f"vocab_size = {vocab_size}: a byte-level tokenizer needs at least {SMALLEST_VOCABULARY}")
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    pieces = (word for text in texts for piece in cut_safely(text, _CHUNK) for word in _cut_long_words(piece))
    backend.train_from_iterator(pieces, trainer)
    end_id = backend.get_vocab()[END_OF_DOCUMENT]
    # As the model was trained: whoever encodes a prompt with this file begins a document.
    backend.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_DOCUMENT} $A", special_tokens=[(END_OF_DOCUMENT, end_id)]
    )
    return TextTokenizer(backend, begin_id=end_id, end_id=end_id)


def load_tokenizer(location: str | Path) -> TextTokenizer:
    """Read a tokenizer.json, and from the files beside it which tokens begin and end a document.

    Looked at in this order: `eos_token` of tokenizer_config.json and special_tokens_map.json, `eos_token_id` of
    config.json and generation_config.json (the first of several), a token spelled `<|endoftext|>`; likewise for bos,
    which falls back to the end token.

    Args:
        location: the file, or a folder (of Hugging Face layout) that holds it.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a file that is no tokenizer, or no end token found.
    """
    path = Path(location).expanduser()
    file = path / TOKENIZER_FILE if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"no tokenizer at {file}")
    try:
        backend = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{file} is not a tokenizer.json: {error}") from None
    ends = marker_ids(file.parent, backend, "eos", BY_TOKENIZER)
    end_id = ends[0] if ends else backend.token_to_id(END_OF_DOCUMENT)
    if end_id is None:
        raise ValueError(f'{file.parent}: which token ends a document? Add "eos_token" to {CONFIG_FILE}')
    begins = marker_ids(file.parent, backend, "bos", BY_TOKENIZER)
    return TextTokenizer(backend, begins[0] if begins else end_id, end_id, file.parent)


def cut_safely(text: str, size: int) -> Iterator[str]:
    """Pieces of at least `size` characters (but the last), each cut between a visible character and a blank."""
    start = 0
    while (cut := _SAFE_CUT.search(text, start + size)) is not None:
        yield text[start : cut.start()]
        start = cut.start()
    if start < len(text):
        yield text[start:]


def _cut_long_words(text: str) -> Iterator[str]:
    """Pieces whose runs of visible characters or of blanks have at most _LONGEST_WORD of them; common text is whole."""
    start = 0
    for run in _LONG_WORD.finditer(text):
        yield text[start : run.end()]
        start = run.end()
    if start < len(text):
        yield text[start:]
