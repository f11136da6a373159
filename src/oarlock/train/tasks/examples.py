"""Examples of post-training, tokenised once into a folder of the cache that is named by their content.

<cache>/<key>/
    tokenizer/                              as `oarlock.train.data` keeps it, with chat_template.jinja
    train.<array>.bin, validation.<array>.bin
    data.json                               what is here, with a hash of every array; written last
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from oarlock.digest import file_digest
from oarlock.train.config import TrainConfig
from oarlock.train.data import Packable, TextTokenizer, load_tokenizer
from oarlock.train.data.arrays import ArrayWriter, Kinds, open_arrays, paths
from oarlock.train.data.cache import made_once
from oarlock.train.tasks.chat import TEMPLATE_FILE, ChatTemplate
from oarlock.train.tasks.records import Record, Records

# Part of the key: raise it when the same records and options would give other arrays.
FORMAT = 1
META = "data.json"


@dataclass(frozen=True)
class PreparedExamples:
    """Tokenised examples on disk."""

    directory: Path
    train: Packable
    validation: Packable
    tokenizer_path: Path
    vocab_size: int
    """Largest token id + 1."""
    eos_id: int | list[int]
    """What the model learns to end an answer with."""
    bos_id: int
    notes: list[str]
    """What was cut or looks unusual."""


@dataclass
class Encoder:
    """What turns a record of a task into tokens."""

    tokenizer: TextTokenizer
    """A special token spelled out in a text is text."""
    chat: Tokenizer
    """The same where it is the special token, as in what a chat template writes."""
    template: ChatTemplate
    special_ids: frozenset[int]

    @classmethod
    def of_model(cls, config: TrainConfig) -> "Encoder":
        """Tokenizer and template of the folder that a run continues.

        Raises:
            ValueError: no folder is named.
            FileNotFoundError: it is missing, or its tokenizer is.
        """
        task, folder = config.train.task, config.model.directory
        if not folder:
            raise ValueError(f"task {task} continues a trained model: name its folder in model.directory")
        if not Path(folder).is_dir():
            raise FileNotFoundError(f"model.directory = {folder!r}: no such folder")
        tokenizer = load_tokenizer(config.data.tokenizer or folder)
        chat = Tokenizer.from_str(tokenizer.backend.to_str())
        chat.encode_special_tokens = False
        template = ChatTemplate.of_folder(tokenizer.folder or Path(folder), chat, config.data.chat_template)
        special = frozenset(index for index, token in chat.get_added_tokens_decoder().items() if token.special)
        return cls(tokenizer, chat, template, special)

    def digest(self) -> str:
        """Hash of everything that decides the tokens of a record."""
        specials = json.dumps(self.template.special_tokens, sort_keys=True)
        content = f"{self.tokenizer.digest()} {specials} {self.template.source}"
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Format:
    """How the examples of one task lie on disk."""

    arrays: Callable[[int], Kinds]
    """Of a vocabulary's size."""
    write: Callable[[Iterator[Record], ArrayWriter], dict[str, Any]]
    """Encodes all records; returns `notes` and `ends`, the ids that answers end with."""
    open: Callable[[dict[str, np.ndarray]], Packable]


def prepare_examples(
    config: TrainConfig, encoder: Encoder, records: Records, form: Format, options: dict[str, Any]
) -> PreparedExamples:
    """Tokenise the records of both sides, or find them tokenised in the cache.

    Args:
        config: of the run.
        encoder: of the model.
        records: to train on and held out.
        form: of the task.
        options: what else decides the arrays.
    """
    parts = {
        "format": FORMAT,
        "task": config.train.task,
        "records": records.digest(),
        "encoder": encoder.digest(),
        "sequence_length": config.data.sequence_length,
        **options,
    }
    key = hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()
    kinds = form.arrays(encoder.tokenizer.vocab_size)

    def build(folder: Path) -> None:
        encoder.tokenizer.save(folder / "tokenizer")
        (folder / "tokenizer" / TEMPLATE_FILE).write_text(encoder.template.source, encoding="utf-8")
        meta: dict[str, Any] = {"notes": [], "ends": [], "files": {}}
        for split, side in (("train", records.train()), ("validation", records.validation())):
            with ArrayWriter(folder, split, kinds) as writer:
                found = form.write(side, writer)
            meta["notes"] += [f"{split}: {note}" for note in found["notes"]]
            meta["ends"] = sorted({*meta["ends"], *found["ends"]})
            meta["files"] |= {path.name: file_digest(path) for path in paths(folder, split, kinds).values()}
        (folder / META).write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")

    def open_folder(folder: Path, verify: bool) -> PreparedExamples:
        try:
            meta = json.loads((folder / META).read_text(encoding="utf-8"))
            notes, ends, files = meta["notes"], meta["ends"], meta["files"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{folder / META} is damaged: {error!r}") from None
        for name, digest in files.items():
            if verify and file_digest(folder / name) != digest:
                raise ValueError(f"{folder / name} is damaged: its content is not what was written")
        train, validation = (form.open(open_arrays(folder, split, kinds)) for split in ("train", "validation"))
        tokenizer = encoder.tokenizer
        eos_id = tokenizer.end_id if len(ends) == 0 else ends[0] if len(ends) == 1 else ends
        return PreparedExamples(
            folder, train, validation, folder / "tokenizer", tokenizer.vocab_size, eos_id, tokenizer.begin_id, notes
        )

    return made_once(Path(config.data.cache).expanduser() / key, open_folder, build)
