"""Text on disk: finding the files of a file, folder or glob, and reading their documents one at a time."""

import glob
import gzip
import io
import json
import lzma
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from oarlock.checkpoint.near_miss import near_names

KINDS = (".txt", ".md", ".jsonl")
COMPRESSIONS = (".gz", ".xz")
EXPECTED = ".txt, .md or .jsonl (optionally compressed: .gz, .xz)"


class Document(NamedTuple):
    """One text that attention never leaves, and a name to point at it in messages."""

    text: str
    name: str


def find_files(location: str, known_names: Sequence[str] = ()) -> list[Path]:
    """Files of a corpus in a fixed order: a file itself, a folder's files recursively by path, a glob's matches.

    Names that begin with a dot, and files of other types, are left out of folders and globs.

    Args:
        location: path of a file or folder, or a glob (`*`, `?`, `[...]`, `**`).
        known_names: names that are no paths but may have been meant, for the near-miss suggestion.

    Raises:
        FileNotFoundError: nothing at that path; names the nearest entry that exists.
        ValueError: a file of another type, or a folder or glob without any text file.
    """
    if not location:
        raise ValueError("empty path of a text: name a file, folder or glob")
    path = Path(location).expanduser()
    if path.is_file():
        if kind_of(path) is None:
            raise ValueError(f"{path}: not a type of text file that is read here; expected {EXPECTED}")
        return [path]
    if path.is_dir():
        files = list(_walk(path))
        if not files:
            raise ValueError(f"folder {path} holds no file of type {EXPECTED}")
        return _without_duplicates(files)
    if glob.has_magic(location):
        matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
        if not matches:
            raise ValueError(f"glob {location!r} matches nothing")
        files = [file for match in matches for file in (_walk(match) if match.is_dir() else [match])]
        files = [file for file in files if kind_of(file) is not None]
        if not files:
            raise ValueError(f"glob {location!r} matches no file of type {EXPECTED}")
        return _without_duplicates(files)
    raise FileNotFoundError(f"no file or folder {location!r}{_suggestion(path, known_names)}")


def kind_of(path: Path) -> str | None:
    """`.txt`, `.md` or `.jsonl`, looking through .gz and .xz; None for any other type."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in KINDS else None


def read_documents(path: Path, separator: str = "") -> Iterator[Document]:
    """Documents of one file, holding no more than one of them in memory.

    A .jsonl file has one document a line, in the field `text`. Any other file is one document, or, with a separator,
    several: a line that the regular expression matches in full ends a document and belongs to none.

    Raises:
        ValueError: bytes that are not UTF-8 (file and byte offset), a line that is no JSON object with a string
            `text` (file and line), a damaged compressed file.
    """
    with _named_damage(path), _open(path) as file:
        if kind_of(path) == ".jsonl":
            yield from _documents(file, path)
        elif separator:
            yield from _separated(file, path, re.compile(separator))
        else:
            yield Document(_decode(file.read(), path, 0), str(path))


def read_records(path: Path) -> Iterator[tuple[Any, str]]:
    """Values of a .jsonl file, one a line, each with the name of its place; blank lines are passed over.

    Raises:
        ValueError: bytes that are not UTF-8, a line that is not JSON or holds half of a surrogate pair, a damaged
            compressed file.
    """
    with _named_damage(path), _open(path) as file:
        for record, where in _json_lines(file, path):
            _check_pairs(json.dumps(record, ensure_ascii=False), where)
            yield record, where


def _documents(file: IO[bytes], path: Path) -> Iterator[Document]:
    for record, where in _json_lines(file, path):
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            found = f"fields {', '.join(record) or 'none'}" if isinstance(record, dict) else type(record).__name__
            if isinstance(record, dict) and "text" in record:
                found = f"text = {record['text']!r:.40}"
            raise ValueError(f'{where}: expected an object with a string field "text", got {found}')
        _check_pairs(record["text"], where)
        yield Document(record["text"], where)


def _check_pairs(text: str, where: str) -> None:
    if re.search("[\ud800-\udfff]", text):
        raise ValueError(f"{where}: text holds half of a surrogate pair (\\ud800-\\udfff), which is no character")


def _json_lines(file: IO[bytes], path: Path) -> Iterator[tuple[Any, str]]:
    offset = 0
    for number, line in enumerate(file, start=1):
        text = _decode(line, path, offset)
        offset += len(line)
        if not text.strip():
            continue
        where = f"{path}:{number}"
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: not JSON: {error}") from None
        yield record, where


def _separated(file: IO[bytes], path: Path, separator: re.Pattern[str]) -> Iterator[Document]:
    offset, number, lines = 0, 1, []
    for line in file:
        text = _decode(line, path, offset)
        offset += len(line)
        if separator.fullmatch(text.rstrip("\r\n")):
            yield Document("".join(lines), f"{path}#{number}")
            number, lines = number + 1, []
        else:
            lines.append(text)
    yield Document("".join(lines), f"{path}#{number}")


def _decode(data: bytes, path: Path, offset: int) -> str:
    try:
        return data.decode("utf-8-sig" if offset == 0 else "utf-8")  # a byte order mark is not text
    except UnicodeDecodeError as error:
        position = offset + error.start
        unpacked = " of the unpacked text" if path.suffix.lower() in COMPRESSIONS else ""
        found = f"0x{error.object[error.start]:02x}"
        raise ValueError(f"{path}: byte {position}{unpacked} is {found}: not UTF-8; convert the file") from None


def _open(path: Path) -> IO[bytes]:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return io.BufferedReader(gzip.open(path, "rb"))
    return lzma.open(path, "rb") if suffix == ".xz" else path.open("rb")


@contextmanager
def _named_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (lzma.LZMAError, zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: damaged compressed file: {error}") from None


def _walk(folder: Path) -> Iterator[Path]:
    """Text files below a folder, ordered by relative path whatever order the file system lists them in."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and kind_of(Path(name)) is not None:
                yield Path(parent, name)


def _without_duplicates(files: list[Path]) -> list[Path]:
    return list({file.resolve(): file for file in reversed(files)}.values())[::-1]


def _suggestion(path: Path, known_names: Sequence[str]) -> str:
    existing = next(parent for parent in path.absolute().parents if parent.is_dir())
    missing = path.absolute().relative_to(existing).parts[0]
    entries = {name.lower(): existing / name for name in os.listdir(existing)}
    names = {name.lower(): name for name in known_names}
    for pool in (names, entries) if len(path.parts) == 1 else (entries,):
        match = near_names(missing.lower(), pool)
        if match:
            return f"; did you mean {str(pool[match[0]])!r}?"
    return ""
