"""A corpus: documents to train on and documents held out, from the bundled plays or a user's own text."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from oarlock.digest import file_digest
from oarlock.train.data import plays
from oarlock.train.data.sources import Document, find_files, kind_of, read_documents
from oarlock.train.data.split import ContentSplit


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """Which text, how it is held out, and how it becomes tokens."""

    corpus: str = plays.NAME
    """`shakespeare` (bundled), or a file, folder or glob of .txt, .md, .jsonl (also .gz, .xz)."""
    validation: str = ""
    """Held-out text, given like corpus; its files are never trained on. Empty = the corpus' own split."""
    validation_share: float = 0.05
    """Share of documents held out when there is no own split and no validation text."""
    separator: str = ""
    """Regular expression; a line it matches in full separates documents of .txt and .md. Empty = one per file."""
    tokenizer: str = ""
    """A tokenizer.json or a folder with one; empty = train a byte-level BPE on the training documents."""
    vocab_size: int = 4096
    """Size of the vocabulary when a tokenizer is trained."""


@dataclass(frozen=True)
class Corpus:
    """Two streams of documents, each of which can be started again, and the files they come from."""

    name: str
    bundled: bool
    """Whether it is the plays, which bring documents and split of their own."""
    files: tuple[Path, ...]
    """Files of the corpus without the explicit validation files, in reading order."""
    validation_files: tuple[Path, ...]
    """Files of an explicit validation text; empty if the corpus splits itself."""
    train: Callable[[], Iterator[Document]]
    """Starts a pass over the training documents; none of them is blank and there is at least one."""
    validation: Callable[[], Iterator[Document]]
    """The same for the held-out documents."""

    def digest(self) -> str:
        """Hash of the files' bytes, types and order, not of their names: a renamed folder is the same corpus."""
        total = hashlib.blake2b(b"plays;" if self.bundled else b"files;", digest_size=16)
        for side in (self.files, self.validation_files):
            total.update(f"{len(side)} files;".encode())
            for path in side:
                total.update(f"{kind_of(path)} {path.suffix.lower()} {file_digest(path, 'sha1')};".encode())
        return total.hexdigest()


def open_corpus(config: CorpusConfig) -> Corpus:
    """Find the files of a corpus and decide how it is split; reads no text yet.

    Raises:
        FileNotFoundError: nothing at the path; names the nearest entry.
        ValueError: no text file there, nothing left to train on, or a separator that is no regular expression.
            Reading the documents raises it for files that cannot be read, and for a side without any text.
    """
    try:
        re.compile(config.separator)
    except re.error as error:
        raise ValueError(f"separator {config.separator!r} is not a regular expression: {error}") from None
    held_out = find_files(config.validation) if config.validation else []
    held_out_paths = {path.resolve() for path in held_out}
    bundled = config.corpus == plays.NAME
    found = [plays.bundled_file()] if bundled else find_files(config.corpus, known_names=[plays.NAME])
    files = [path for path in found if path.resolve() not in held_out_paths]
    if not files:
        raise ValueError(f"nothing is left to train on: validation {config.validation!r} covers {config.corpus!r}")

    def read(paths: Iterable[Path]) -> Iterator[Document]:
        for path in paths:
            yield from (document for document in read_documents(path, config.separator) if document.text.strip())

    def read_all() -> Iterator[Document]:
        if bundled:
            yield from plays.read_scenes(held_out=False)
            if held_out:
                yield from plays.read_scenes(held_out=True)
        else:
            yield from read(files)

    if held_out:
        train, validation = read_all, lambda: read(held_out)
    elif bundled:
        train, validation = read_all, lambda: plays.read_scenes(held_out=True)
    else:
        split = ContentSplit(read_all, config.validation_share, config.corpus)
        train, validation = split.train, split.validation
    return Corpus(
        name=config.corpus,
        bundled=bundled,
        files=tuple(files),
        validation_files=tuple(held_out),
        train=lambda: _some(train(), f"corpus {config.corpus!r} holds no text to train on"),
        validation=lambda: _some(validation(), f"{config.validation or config.corpus!r} holds no validation text"),
    )


def _some(documents: Iterator[Document], otherwise: str) -> Iterator[Document]:
    first = next(documents, None)
    if first is None:
        raise ValueError(otherwise)
    yield first
    yield from documents
