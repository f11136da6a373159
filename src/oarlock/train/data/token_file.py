"""Tokens of many documents in three flat arrays: written as a stream, read through memory maps.

tokens     uint16 or uint32 [N]   every document as: begin marker, t1 .. tn, end marker
offsets    int64 [D + 1]          document d is tokens[offsets[d] : offsets[d + 1]]
num_bytes  int64 [D]              UTF-8 bytes of the text of document d
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from oarlock.train.data.batch import IGNORED, Batch
from oarlock.train.data.packing import Packing, pack
from oarlock.train.data.sources import Document
from oarlock.train.data.tokenizer import TextTokenizer

_BATCH_CHARACTERS = 1 << 20
_ARRAYS = ("tokens", "offsets", "num_bytes")


@dataclass(frozen=True)
class TokenFile:
    """Tokenised documents. A document of n tokens has n + 1 targets: its tokens and its end marker."""

    tokens: np.ndarray
    offsets: np.ndarray
    num_bytes: np.ndarray
    is_target: np.ndarray | None = None
    """uint8 [N], 1 where a token is predicted and not only given; None: all but the begin markers."""

    @property
    def num_documents(self) -> int:
        """Documents D."""
        return len(self.num_bytes)

    @property
    def num_targets(self) -> int:
        """Tokens that are predicted: all but the begin markers, or those of `is_target`."""
        return len(self.tokens) - self.num_documents if self.is_target is None else int(self.is_target.sum())

    @property
    def total_bytes(self) -> int:
        """UTF-8 bytes of all texts; total nats / (ln 2 * total_bytes) are the bits per byte."""
        return int(self.num_bytes.sum())

    @property
    def end_id(self) -> int:
        """The end marker."""
        return int(self.tokens[-1])

    def document(self, index: int) -> np.ndarray:
        """Tokens t1 .. tn of one document, without markers."""
        return self.tokens[self.offsets[index] + 1 : self.offsets[index + 1] - 1]

    def pack(self, seq_len: int, generator: np.random.Generator) -> Packing:
        """See `oarlock.train.data.packing.pack`."""
        return pack(self.offsets, self.num_bytes, seq_len, generator)

    def assemble(self, seq_len: int, rows: Sequence[tuple[Packing, int] | None]) -> Batch:
        """Gather rows; see `Packable`. One index array for the whole batch, no loop over tokens."""
        starts: list[int] = []
        lengths: list[list[int]] = []
        is_padding: list[bool] = []
        num_bytes = 0
        for row in rows:
            row_lengths: list[int] = []
            if row is not None:
                packing, index = row
                pieces = slice(packing.row_offsets[index], packing.row_offsets[index + 1])
                row_lengths = packing.lengths[pieces].tolist()
                starts += packing.starts[pieces].tolist()
                num_bytes += int(packing.num_bytes[pieces].sum())
                is_padding += [False] * len(row_lengths)
            if left := seq_len - sum(row_lengths):
                row_lengths.append(left)
                starts.append(0)
                is_padding.append(True)
            lengths.append(row_lengths)
        flat = np.array([length for row_lengths in lengths for length in row_lengths], np.int64)
        positions = np.arange(len(rows) * seq_len) - np.repeat(np.cumsum(flat) - flat, flat)
        padding = np.repeat(np.array(is_padding), flat)
        index = np.where(padding, 0, np.repeat(np.array(starts, np.int64), flat) + positions)
        inputs = self.tokens[index].astype(np.int64)
        targets = self.tokens[index + 1].astype(np.int64)
        inputs[padding] = self.end_id
        targets[padding] = IGNORED
        if self.is_target is not None:
            targets[self.is_target[index + 1] == 0] = IGNORED
        input_ids, target_ids, position_ids = (
            torch.from_numpy(array.reshape(len(rows), seq_len)) for array in (inputs, targets, positions)
        )
        num_targets = int((targets != IGNORED).sum())
        return Batch(input_ids, target_ids, position_ids, lengths, num_targets, num_bytes)

    @classmethod
    def from_documents(
        cls, documents: Sequence[Sequence[int]], num_bytes: Sequence[int], begin_id: int, end_id: int
    ) -> "TokenFile":
        """The same in memory, from lists of ids."""
        tokens = [token for document in documents for token in (begin_id, *document, end_id)]
        offsets = np.cumsum([0, *(len(document) + 2 for document in documents)], dtype=np.int64)
        return cls(np.array(tokens, token_dtype(max(tokens) + 1)), offsets, np.array(num_bytes, np.int64))

    @classmethod
    def open(cls, folder: Path, split: str, vocab_size: int) -> "TokenFile":
        """Memory-map the arrays of one split, read-only.

        Raises:
            ValueError: arrays whose sizes do not fit together.
        """
        kinds = (token_dtype(vocab_size), np.dtype(np.int64), np.dtype(np.int64))
        arrays = []
        for path, kind in zip(array_paths(folder, split), kinds, strict=True):
            if path.stat().st_size == 0 or path.stat().st_size % kind.itemsize:
                raise ValueError(f"{path}: {path.stat().st_size} bytes are no array of {kind.name}")
            # A plain view: slicing a memmap object costs ten times as much.
            arrays.append(np.asarray(np.memmap(path, kind, mode="r")))
        tokens, offsets, num_bytes = arrays
        if len(offsets) != len(num_bytes) + 1 or offsets[-1] != len(tokens):
            raise ValueError(f"{folder}: the arrays of {split!r} do not fit together")
        return cls(tokens, offsets, num_bytes)


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """uint16 where every id fits, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def array_paths(folder: Path, split: str) -> list[Path]:
    """Files of one split: tokens, offsets, num_bytes."""
    return [folder / f"{split}.{name}.bin" for name in _ARRAYS]


def write_token_file(documents: Iterable[Document], tokenizer: TextTokenizer, folder: Path, split: str) -> None:
    """Tokenise documents into the files of one split; memory holds one batch of about 1 MiB of text."""
    with _Writer(folder, split, tokenizer) as writer:
        for batch in _batches(documents, tokenizer):
            ids = tokenizer.encode_batch([piece for piece, _ in batch])
            for (piece, is_last), piece_ids in zip(batch, ids, strict=True):
                writer.add(piece_ids, len(piece.encode()), is_last)


class _Writer:
    """Appends pieces of documents to the three arrays."""

    def __init__(self, folder: Path, split: str, tokenizer: TextTokenizer):
        self._files = [path.open("wb") for path in array_paths(folder, split)]
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._begin, self._end = ([marker] for marker in (tokenizer.begin_id, tokenizer.end_id))
        self._length = self._bytes = 0
        self._inside = False

    def __enter__(self) -> "_Writer":
        self._number(1, 0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for file in self._files:
            file.close()

    def add(self, ids: list[int], num_bytes: int, is_last: bool) -> None:
        """Append one piece of a document; the last one ends it."""
        marked = [*([] if self._inside else self._begin), *ids, *(self._end if is_last else [])]
        self._files[0].write(np.array(marked, self._dtype).tobytes())
        self._length += len(marked)
        self._bytes += num_bytes
        self._inside = not is_last
        if is_last:
            self._number(1, self._length)
            self._number(2, self._bytes)
            self._bytes = 0

    def _number(self, array: int, value: int) -> None:
        self._files[array].write(np.int64(value).tobytes())


def _batches(documents: Iterable[Document], tokenizer: TextTokenizer) -> Iterator[list[tuple[str, bool]]]:
    """Groups of (piece of text, is it the last of its document) with about _BATCH_CHARACTERS characters."""
    batch: list[tuple[str, bool]] = []
    size = 0
    for document in documents:
        for piece, is_last in _with_last(tokenizer.pieces(document.text)):
            batch.append((piece, is_last))
            size += len(piece)
            if size >= _BATCH_CHARACTERS:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _with_last(pieces: Iterator[str]) -> Iterator[tuple[str, bool]]:
    piece = next(pieces)
    for following in pieces:
        yield piece, False
        piece = following
    yield piece, True
