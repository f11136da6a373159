"""Transfers: the steps that fill a tensor from files, each from one piece straight into its memory.

Where a program in the AOA language stands between the two, a transfer moves the elements of one affine block: a
transposition, an interleaving, a cast happen on the way, without a temporary copy. Only tensors that are computed from
others (dequantised ones) pass through memory of their own, one block at a time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from oarlock.checkpoint.aoa import Block, Computed, Constant
from oarlock.checkpoint.aoa.blocks import copy_exactly
from oarlock.checkpoint.aoa.cutting import restrict
from oarlock.checkpoint.boxes import Box
from oarlock.checkpoint.derived import Derived, composed
from oarlock.checkpoint.stored import PieceFile, StoredPiece, StoredTensor, tuples


class Read(NamedTuple):
    """A box of a stored piece (counted from the piece's corner) that a transfer reads."""

    stored: StoredTensor
    piece: StoredPiece
    box: Box

    @property
    def file(self) -> PieceFile:
        """Where it lies."""
        return self.piece.file

    def check(self) -> None:
        """Raise CheckpointError unless the file holds the piece."""
        self.file.check(self.piece.name, self.stored.dtype, self.piece.box.size)

    def tensor(self) -> Tensor:
        """The whole piece, if possible as a view of the file."""
        return self.file.tensor(self.piece.name, self.stored.dtype, self.piece.box.size)

    def blocks(self) -> np.ndarray:
        """The MiB of the file that are read."""
        return self.file.blocks_of(self.piece.name, self.stored.dtype, self.piece.box.size, self.box)


class Transfer(Protocol):
    """One step of a load."""

    @property
    def reads(self) -> Iterable[Read]:
        """What it reads."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes of the files that are copied."""
        ...

    def run(self) -> None:
        """Write the elements."""


@dataclass(frozen=True)
class Copy:
    """A box of a stored tensor to memory of the same shape, converting the dtype if the target has another.

    The pieces that hold it are found when it runs: a plan has one transfer per box, however many pieces there are.
    """

    stored: StoredTensor
    box: Box
    target: Tensor

    @property
    def reads(self) -> Iterable[Read]:
        """What it reads."""
        pieces, boxes, _ = self.stored.columns(self.box)
        return tuples(Read, repeat(self.stored), pieces, boxes)

    @property
    def num_bytes(self) -> int:
        """Bytes of the files that are copied."""
        return self.box.volume * self.stored.dtype.itemsize

    def run(self) -> None:
        """Write the elements."""
        for piece, box, place in self.stored.parts(self.box):
            target = self.target[Box(place, box.size).slices]
            values = Read(self.stored, piece, box).tensor()[box.slices]
            copy_exactly(values, target) if target.dtype == values.dtype else target.copy_(values)


@dataclass(frozen=True)
class Move:
    """The elements of an affine block that lie in one piece, or a constant."""

    block: Block
    target: Tensor
    read: Read | None

    @property
    def reads(self) -> Sequence[Read]:
        """What it reads."""
        return () if self.read is None else (self.read,)

    @property
    def num_bytes(self) -> int:
        """Bytes of the files that are copied."""
        return 0 if self.read is None else self.block.volume * self.read.stored.dtype.itemsize

    def run(self) -> None:
        """Write the elements."""
        if self.read is None:
            self.block.copy(self.target, self.target)
        else:
            self.block.copy(self.read.tensor(), self.target, origin=self.read.piece.box.offset)


@dataclass(frozen=True)
class Compute:
    """A block of a computed tensor: the boxes of its inputs are read, the hull is computed, the block moved."""

    block: Block
    source: Computed
    stored: Mapping[str, StoredTensor | Derived]
    target: Tensor

    @property
    def reads(self) -> Sequence[Read]:
        """What it reads."""
        return [read for _, transfers in self._inputs("meta") for transfer in transfers for read in transfer.reads]

    @property
    def num_bytes(self) -> int:
        """Bytes of the files that are copied."""
        return sum(transfer.num_bytes for _, transfers in self._inputs("meta") for transfer in transfers)

    def run(self) -> None:
        """Write the elements."""
        values = []
        for tensor, transfers in self._inputs("cpu"):
            for transfer in transfers:
                transfer.run()
            values.append(tensor)
        self.block.copy(self.source.compute(*values), self.target, origin=self._hull[0])

    @property
    def _hull(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.source.hull(*self.block.source_box())

    def _inputs(self, device: str) -> Iterator[tuple[Tensor, list[Transfer]]]:
        """Memory for the boxes of the inputs, each with what fills it."""
        for relation, (offset, size) in zip(self.source.inputs, self.source.input_boxes(self._hull), strict=True):
            tensor = torch.empty(size, dtype=relation.dtype, device=device)
            yield tensor, list(moves(relation.query(offset, size), self.stored, tensor))


def transfers(source: StoredTensor | Derived, box: Box, target: Tensor) -> Iterator[Transfer]:
    """What fills `target` with a box of a tensor, converting the dtype if the target has another."""
    if not box.volume:
        return
    if isinstance(source, Derived):
        yield from moves(source.relation.cast(target.dtype).query(box.offset, box.size), source.stored, target)
    else:
        yield Copy(source, box, target)


def moves(blocks: Iterable[Block], stored: Mapping[str, StoredTensor | Derived], target: Tensor) -> Iterator[Transfer]:
    """The transfers that fill `target` with the blocks of a query."""
    for block in blocks:
        if isinstance(block.source, Constant):
            yield Move(block, target, None)
        elif isinstance(block.source, Computed):
            yield Compute(block, block.source, stored, target)
        else:
            source = stored[block.source]
            if isinstance(source, Derived):
                yield from moves(composed(block, source.relation), source.stored, target)
                continue
            for piece in source.overlapping(Box(*block.source_box())):
                for part in within(block, piece.box):
                    read = Read(source, piece, Box(*part.source_box()).within(piece.box))
                    yield Move(part, target, read)


def within(block: Block, box: Box) -> list[Block]:
    """The elements of a block whose source lies in a box."""
    reach = Box(*block.source_box())
    if reach.intersect(box) == reach:
        return [block]
    parts = [block.with_ops(()).swapped("")]  # its source side as the destination, which can be cut
    for dim, (start, stop) in enumerate(zip(box.offset, box.stop, strict=True)):
        parts = [cut for part in parts for cut in restrict(part, dim, start, stop)]
    return [_swapped_back(part, block) for part in parts]


def _swapped_back(part: Block, block: Block) -> Block:
    assert isinstance(block.source, str)
    return part.swapped(block.source).with_ops(block.ops)
