"""Tensors in files: their pieces, and what reading asks of a file."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from oarlock.checkpoint.boxes import Box

T = TypeVar("T", bound=tuple)


class PieceFile(Protocol):
    """A file that holds pieces of tensors under names."""

    path: Path

    def check(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """Raise CheckpointError unless the file has this tensor."""

    def tensor(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """The tensor, if possible as a view of the file."""
        ...

    def blocks_of(self, name: str, dtype: torch.dtype, shape: tuple[int, ...], box: Box) -> np.ndarray:
        """Ascending indices of the MiB that hold a box of a tensor and what describes it; none without digests."""
        ...

    def check_blocks(self, blocks: np.ndarray) -> None:
        """Raise CheckpointError unless these MiB have their digests."""


@dataclass(frozen=True)
class StoredPiece:
    """A box of a tensor, and where it lies."""

    file: PieceFile
    name: str
    box: Box


class Part(NamedTuple):
    """What a piece holds of some box: the elements counted from the piece's corner, and their place in that box."""

    piece: StoredPiece
    box: Box
    place: tuple[int, ...]


def tuples(kind: type[T], *columns: Iterable[Any]) -> Iterator[T]:
    """Named tuples of a kind from their fields, as many as the shortest has; a third of the cost of calling it."""
    return map(tuple.__new__, repeat(kind), zip(*columns, strict=False))


_MANY = 256  # pieces, of which the ones near a box are worth a search


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in files."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: tuple[StoredPiece, ...]

    def overlapping(self, box: Box) -> list[StoredPiece]:
        """The pieces that hold some of a box."""
        return [part.piece for part in self.parts(box)]

    def parts(self, box: Box) -> Iterable[Part]:
        """What the pieces hold of a box."""
        return tuples(Part, *self.columns(box))

    def columns(self, box: Box) -> tuple[Iterable[StoredPiece], Iterable[Box], Iterable[tuple[int, ...]]]:
        """The fields of `parts`, one iterable each: a plan for thousands of pieces consists of little else."""
        if not box.volume:
            return (), (), ()
        if len(self.pieces) < 8:
            shared = [(piece, piece.box.intersect(box)) for piece in self.pieces]
            hits = [(piece, common) for piece, common in shared if common is not None]
            boxes = [common.within(piece.box) for piece, common in hits]
            return [piece for piece, _ in hits], boxes, [common.within(box).offset for _, common in hits]
        offsets, stops = self._corners
        near = self._near(box) if len(self.pieces) >= _MANY else slice(None)
        offsets, stops = offsets[near], stops[near]
        starts = np.maximum(offsets, box.offset)
        sizes = np.minimum(stops, box.stop) - starts
        indices = np.flatnonzero((sizes > 0).all(axis=1))
        in_piece, in_box, size = (
            map(tuple, values[indices].tolist()) for values in (starts - offsets, starts - np.array(box.offset), sizes)
        )
        if not isinstance(near, slice):
            indices = near[indices]
        return map(self.pieces.__getitem__, indices.tolist()), tuples(Box, in_piece, size), in_box

    @cached_property
    def _corners(self) -> tuple[np.ndarray, np.ndarray]:
        """Offsets and stops of the pieces, [pieces, rank] each."""
        shape = (len(self.pieces), 2, len(self.shape))
        numbers = chain.from_iterable(chain.from_iterable([piece.box for piece in self.pieces]))
        boxes = np.fromiter(numbers, np.int64, math.prod(shape)).reshape(shape)
        return boxes[:, 0], boxes.sum(axis=1)

    def _near(self, box: Box) -> np.ndarray | slice:
        """Indices of the pieces that may hold some of a box: those near it along the dim that is cut most often."""
        dim, order, offsets, longest = self._line
        first = np.searchsorted(offsets, box.offset[dim] - longest, side="right")
        last = np.searchsorted(offsets, box.stop[dim], side="left")
        return order[first:last] if last - first < len(order) // 2 else slice(None)

    @cached_property
    def _line(self) -> tuple[int, np.ndarray, np.ndarray, int]:
        """The dim that is cut most often; the pieces in its order, where they begin, and how long the longest is."""
        offsets, stops = self._corners
        dim = max(range(len(self.shape)), key=lambda dim: len(set(offsets[:, dim].tolist())))
        order = np.argsort(offsets[:, dim], kind="stable")
        return dim, order, offsets[order, dim], int((stops - offsets)[:, dim].max())
