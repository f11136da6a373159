"""A corpus, tokenised once: `prepare` keeps the result in a folder named by the content it was made from.

<cache>/<key>/
    tokenizer/                      tokenizer.json, tokenizer_config.json (transformers reads it)
    train.{tokens,offsets,num_bytes}.bin, validation.{...}.bin
    data.json                       what is here, with a hash of every array; written last
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oarlock.digest import file_digest
from oarlock.train.data.cache import made_once
from oarlock.train.data.corpus import Corpus, CorpusConfig, open_corpus
from oarlock.train.data.token_file import TokenFile, array_paths, write_token_file
from oarlock.train.data.tokenizer import SMALLEST_VOCABULARY, TextTokenizer, load_tokenizer, train_tokenizer

# Part of the key: raise it when the same source and options would give other tokens or another layout.
FORMAT = 2
META = "data.json"
SPLITS = ("train", "validation")


@dataclass(frozen=True)
class PreparedData:
    """A tokenised corpus on disk."""

    directory: Path
    train: TokenFile
    validation: TokenFile
    tokenizer_path: Path
    """Folder with tokenizer.json and its companions."""
    vocab_size: int
    """Largest token id + 1."""
    eos_id: int
    """Marker after a document."""
    bos_id: int
    """Marker before a document."""

    @classmethod
    def open(cls, directory: str | Path, *, verify: bool = False) -> "PreparedData":
        """Open what `prepare` made, for example on the other ranks of a machine.

        Args:
            directory: the folder of one tokenised corpus.
            verify: also hash every array.

        Raises:
            FileNotFoundError: no prepared corpus there.
            ValueError: a damaged one; the message names the file.
        """
        directory = Path(directory)
        meta = _read_meta(directory)
        vocab_size, eos_id, bos_id = (int(meta[name]) for name in ("vocab_size", "eos_id", "bos_id"))
        for name, digest in meta["files"].items():
            if not (directory / name).is_file():
                raise ValueError(f"{directory / name} is missing from a prepared corpus")
            if verify and file_digest(directory / name) != digest:
                raise ValueError(f"{directory / name} is damaged: its content is not what was written")
        train, validation = (TokenFile.open(directory, split, vocab_size) for split in SPLITS)
        return cls(directory, train, validation, directory / "tokenizer", vocab_size, eos_id, bos_id)

    def check_vocabulary(self, model_vocab_size: int) -> None:
        """Refuse a model with fewer embeddings than these tokens need.

        Raises:
            ValueError: with both sizes.
        """
        if model_vocab_size < self.vocab_size:
            raise ValueError(
                f"vocabulary mismatch: the data in {self.directory} has token ids up to {self.vocab_size - 1}, the "
                f"model has {model_vocab_size} embeddings; tokenise with the model's own tokenizer (data.tokenizer)"
            )


def prepare(config: CorpusConfig, cache_dir: str | Path) -> PreparedData:
    """Tokenise a corpus, or find it tokenised in the cache.

    The key is a hash of the source's bytes, the tokenizer and the options, so a changed byte tokenises anew and an
    unchanged corpus costs reading it once. A damaged entry is made again, with a warning. Several processes may
    prepare the same corpus at once; the first to finish is kept.

    Args:
        config: source, split and tokenizer.
        cache_dir: folder that holds the entries; created.

    Returns:
        The tokens of both splits, memory-mapped.

    Raises:
        FileNotFoundError, ValueError: as `open_corpus`, `load_tokenizer` and reading the documents.
    """
    corpus = open_corpus(config)
    tokenizer = load_tokenizer(config.tokenizer) if config.tokenizer else None
    if tokenizer is None and config.vocab_size < SMALLEST_VOCABULARY:
        raise ValueError(f"vocab_size = {config.vocab_size}: must be at least {SMALLEST_VOCABULARY}, one for each byte")
    key = _key(corpus, config, tokenizer)
    directory = Path(cache_dir).expanduser() / key
    return made_once(
        directory,
        lambda folder, verify: PreparedData.open(folder, verify=verify),
        lambda folder: _build(corpus, config, tokenizer, folder, key),
    )


def _build(corpus: Corpus, config: CorpusConfig, tokenizer: TextTokenizer | None, directory: Path, key: str) -> None:
    if tokenizer is None:
        tokenizer = train_tokenizer((document.text for document in corpus.train()), config.vocab_size)
    tokenizer.save(directory / "tokenizer")
    write_token_file(corpus.train(), tokenizer, directory, "train")
    write_token_file(corpus.validation(), tokenizer, directory, "validation")
    arrays = [path for split in SPLITS for path in array_paths(directory, split)]
    meta = {
        "format": FORMAT,
        "key": key,
        "corpus": corpus.name,
        "vocab_size": tokenizer.vocab_size,
        "eos_id": tokenizer.end_id,
        "bos_id": tokenizer.begin_id,
        "files": {path.name: file_digest(path) for path in arrays},
    }
    (directory / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


def _key(corpus: Corpus, config: CorpusConfig, tokenizer: TextTokenizer | None) -> str:
    parts: dict[str, Any] = {
        "format": FORMAT,
        "source": corpus.digest(),
        "share": None if config.validation else config.validation_share,
        "separator": config.separator,
        "tokenizer": config.vocab_size if tokenizer is None else tokenizer.digest(),
    }
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def _read_meta(directory: Path) -> dict[str, Any]:
    path = directory / META
    if not path.is_file():
        raise FileNotFoundError(f"{directory} is not a prepared corpus: it has no {META}")
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        files, _ = meta["files"], (meta["vocab_size"], meta["eos_id"], meta["bos_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from None
    if meta["format"] != FORMAT:
        raise ValueError(f"{path}: format {meta['format']}, this version reads {FORMAT}")
    expected = {path.name for split in SPLITS for path in array_paths(directory, split)}
    if set(files) != expected:
        raise ValueError(f"{path} is damaged: it lists {sorted(files)}")
    return meta
