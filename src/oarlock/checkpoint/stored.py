"""Tensors in files: their pieces, and what reading asks of a file."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from oarlock.checkpoint.boxes import Box


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


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in files."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: tuple[StoredPiece, ...]

    def overlapping(self, box: Box) -> Iterable[StoredPiece]:
        """The pieces that hold some of a box."""
        if len(self.pieces) < 8:
            return [piece for piece in self.pieces if piece.box.intersect(box) is not None]
        offsets, stops = self._corners
        hits = (offsets < np.array(box.stop)).all(axis=1) & (stops > np.array(box.offset)).all(axis=1)
        return [self.pieces[index] for index in np.flatnonzero(hits)]

    @cached_property
    def _corners(self) -> tuple[np.ndarray, np.ndarray]:
        """Offsets and stops of the pieces, [pieces, rank] each."""
        offsets = np.array([piece.box.offset for piece in self.pieces])
        return offsets, offsets + np.array([piece.box.size for piece in self.pieces])
