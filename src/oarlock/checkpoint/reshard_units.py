"""Units: what one rank needs of a cell that it does not hold, each element once, as a box of a lattice.

Blocks of a program read lattices of source elements. Along every axis of the cell a lattice has the coordinates
base + Σ i_a σ_a; numbered in the order of (i_a), they are the coordinates of a dense tensor, its *message space*. What
several destinations need of it is a set of boxes there, which are cut where they overlap.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oarlock.checkpoint.aoa import Atom, Block, Cast, Computed, Constant, Relation
from oarlock.checkpoint.boxes import Box
from oarlock.checkpoint.dtypes import dtype_name, dtype_of
from oarlock.checkpoint.reshard_sources import Cell, refine
from oarlock.checkpoint.stored import StoredPiece
from oarlock.checkpoint.transfers import Copy, Move, Transfer, within

Steps = tuple[tuple[int, int, int], ...]
"""Atoms of a lattice: (extent, axis, step), the ones of an axis from the largest step to the smallest."""


@dataclass(eq=False)
class Home:
    """Memory of a destination; it may be there only while it is filled."""

    tensor: Tensor | None

    def take(self) -> Tensor:
        """The memory, which is forgotten here."""
        tensor, self.tensor = self.tensor, None
        assert tensor is not None
        return tensor


@dataclass(frozen=True, eq=False)
class Use:
    """Where elements go: a block from the source tensor (or a message space) to a destination; no cell = a constant."""

    block: Block
    home: Home
    cell: Cell | None
    dtype: torch.dtype
    """Of the source."""
    phase: int = 0


class Step(NamedTuple):
    """What moves from a stored piece to a destination; without a piece a constant."""

    block: Block
    target: Tensor
    piece: StoredPiece | None
    dtype: torch.dtype
    """Of the source."""


def steps_of(transfer: Transfer) -> Iterator[Step]:
    """What makes up a transfer of a load plan; the blocks read the whole stored tensor.

    Raises:
        ValueError: the tensor is computed from others.
    """
    if isinstance(transfer, Move):
        if transfer.read is None:
            yield Step(transfer.block, transfer.target, None, transfer.target.dtype)
        else:
            yield Step(transfer.block, transfer.target, transfer.read.piece, transfer.read.stored.dtype)
        return
    if not isinstance(transfer, Copy):
        raise ValueError(COMPUTED)
    source = transfer.stored.dtype
    ops = () if source == transfer.target.dtype else (Cast(source, transfer.target.dtype),)
    for piece, box, place in transfer.stored.parts(transfer.box):
        base = tuple(a + b for a, b in zip(piece.box.offset, box.offset, strict=True))
        atoms = tuple(Atom(n, k, 1, k, 1) for k, n in enumerate(box.size) if n > 1)
        yield Step(Block("", atoms, base, tuple(place), ops), transfer.target, piece, source)


def uses_of_transfer(transfer: Transfer) -> Iterator[Use]:
    """The uses that make up a transfer from cells; ValueError if the tensor is computed from others."""
    for block, target, piece, dtype in steps_of(transfer):
        yield Use(block, Home(target), piece and _cell(piece), dtype)


def uses_of_blocks(blocks: Iterable[Block], pieces: Any, home: Home, dtype: torch.dtype, phase: int) -> Iterator[Use]:
    """The uses of the blocks of a tensor. `pieces`: source name -> StoredTensor.

    Raises:
        ValueError: the tensor is computed from others.
    """
    for block in blocks:
        if isinstance(block.source, Constant):
            yield Use(block, home, None, dtype, phase)
            continue
        if isinstance(block.source, Computed):
            raise ValueError(COMPUTED)
        stored = pieces[block.source]
        for piece in stored.overlapping(Box(*block.source_box())):
            for part in within(block, piece.box):
                yield Use(part, home, _cell(piece), stored.dtype, phase)


COMPUTED = "tensors that are computed from others (fp8_block, mxfp4) cannot be sent between ranks; load them from files"


@dataclass(frozen=True, eq=False)
class Unit:
    """A box of a message space, the dtype in which it travels, and where its elements go.

    The blocks of `uses` read the message space; a use may need only a part of the box.
    """

    cell: Cell
    base: tuple[int, ...]
    steps: Steps
    box: Box
    dtype: torch.dtype
    wire: torch.dtype
    uses: tuple[Use, ...]
    phase: int

    @property
    def num_bytes(self) -> int:
        """On the wire."""
        return self.box.volume * self.wire.itemsize

    def cut(self, num_bytes: int) -> tuple["Unit", "Unit"] | None:
        """The first rows, of about so many bytes, and the others; None if that is none or all."""
        dim = next((k for k, n in enumerate(self.box.size) if n > 1), None)
        if dim is None:
            return None
        size = self.box.size[dim]
        rows = round(num_bytes / (self.num_bytes // size)) if self.num_bytes else 0
        if not 0 < rows < size:
            return None
        return self._rows(dim, 0, rows), self._rows(dim, rows, size)

    def pieces(self, most_bytes: int) -> Iterator["Unit"]:
        """The same in parts of at most so many bytes (or one element)."""
        if self.num_bytes <= most_bytes or self.box.volume == 1:
            yield self
            return
        dim = next(k for k, n in enumerate(self.box.size) if n > 1)
        size = self.box.size[dim]
        rows = max(1, most_bytes // (self.num_bytes // size))
        for start in range(0, size, rows):
            yield from self._rows(dim, start, min(start + rows, size)).pieces(most_bytes)

    def _rows(self, dim: int, start: int, stop: int) -> "Unit":
        offset, size = list(self.box.offset), list(self.box.size)
        offset[dim], size[dim] = offset[dim] + start, stop - start
        return self._within(Box(tuple(offset), tuple(size)))

    def _within(self, box: Box) -> "Unit":
        uses = [Use(block, u.home, u.cell, u.dtype, u.phase) for u in self.uses for block in _cut(u.block, box)]
        return Unit(self.cell, self.base, self.steps, box, self.dtype, self.wire, tuple(uses), self.phase)

    def request(self) -> list[Any]:
        """What the sender has to know (JSON)."""
        return [self.cell.name, self.cell.box, self.base, self.steps, self.box, dtype_name(self.wire)]

    def unpack(self, message: Tensor) -> None:
        """Write the elements of a message (of the box's shape) where they belong."""
        for use in self.uses:
            assert use.home.tensor is not None
            use.block.copy(message, use.home.tensor, origin=self.box.offset)

    def direct(self) -> Tensor | None:
        """The destination's memory as the message itself, where the elements lie there one after the other."""
        if len(self.uses) != 1 or self.uses[0].block.ops or self.uses[0].block.volume != self.box.volume:
            return None
        use = self.uses[0]
        return _in_order(use.block.swapped(""), use.home.tensor, use.block.dest_base, self.box)


@dataclass(frozen=True, eq=False)
class Request:
    """A unit as its sender sees it."""

    blocks: tuple[Block, ...]
    source: Tensor
    origin: tuple[int, ...]
    box: Box
    wire: torch.dtype

    @classmethod
    def read(cls, told: Sequence[Any], views: Any) -> "Request":
        """From what the receiver tells. `views`: name -> boxes of this rank's memory."""
        name, cell, base, steps, box, wire = told
        cell, box = (Box(tuple(b[0]), tuple(b[1])) for b in (cell, box))
        held, view = next((held, view) for held, view in views[name] if held.intersect(cell) == cell)
        relation = _space(tuple(base), tuple(tuple(step) for step in steps), view.dtype)
        blocks = relation.cast(dtype_of(wire)).query(box.offset, box.size)
        return cls(blocks, view, held.offset, box, dtype_of(wire))

    @property
    def num_bytes(self) -> int:
        """On the wire."""
        return self.box.volume * self.wire.itemsize

    def pack(self, message: Tensor) -> None:
        """Fill a message of the box's shape."""
        for block in self.blocks:
            block.copy(self.source, message, origin=self.origin)

    def direct(self) -> Tensor | None:
        """The source's memory as the message itself, where the elements lie there one after the other."""
        if len(self.blocks) != 1 or self.blocks[0].ops:
            return None
        base = tuple(s - o for s, o in zip(self.blocks[0].source_base, self.origin, strict=True))
        return _in_order(self.blocks[0], self.source, base, Box.whole(self.box.size))


def units_of(uses: Iterable[Use]) -> list[Unit]:
    """What has to be received for uses of cells that this rank does not hold.

    Every element travels once in each phase, unless destinations need it in strided patterns that overlap only in part.
    """
    spaces: dict[tuple[Any, ...], list[Use]] = {}
    for use in uses:
        assert use.cell is not None
        base, steps = _lattice(use.block)
        if _is_dense(base, steps, use.block):
            base, steps = use.cell.box.offset, tuple((n, k, 1) for k, n in enumerate(use.cell.box.size) if n > 1)
        spaces.setdefault((use.phase, use.cell, base, steps), []).append(use)
    units = []
    for (phase, cell, base, steps), members in spaces.items():
        moved = [Use(_in_space(use.block, base, steps), use.home, use.cell, use.dtype, use.phase) for use in members]
        for box, indices in refine([Box(*use.block.source_box()) for use in moved]):
            own = [moved[index] for index in indices]
            wire = _wire_dtype(own)
            if wire != own[0].dtype:
                own = [Use(u.block.with_ops(u.block.ops[1:]), u.home, u.cell, u.dtype, u.phase) for u in own]
            unit = Unit(cell, base, steps, box, own[0].dtype, wire, tuple(own), phase)
            units.append(unit if len(moved) == 1 else unit._within(box))
    return units


def _cell(piece: StoredPiece) -> Cell:
    assert isinstance(piece.file, Cell)
    return piece.file


def _cut(block: Block, box: Box) -> Sequence[Block]:
    return within(block, box) if Box(*block.source_box()).intersect(box) is not None else ()


def _wire_dtype(uses: Sequence[Use]) -> torch.dtype:
    """A cast that all uses begin with, and that makes elements smaller, happens before they travel."""
    first = uses[0].block.ops[0] if uses[0].block.ops else None
    if not isinstance(first, Cast) or first.dtype.itemsize >= uses[0].dtype.itemsize:
        return uses[0].dtype
    return first.dtype if all(use.block.ops[:1] == (first,) for use in uses) else uses[0].dtype


def _lattice(block: Block) -> tuple[tuple[int, ...], Steps]:
    """The source elements of a block: first one, and steps along every axis; neighbouring steps fused."""
    fused: list[tuple[int, int, int]] = []
    for atom in sorted(block.atoms, key=lambda a: (a.source_dim, -a.source_step)):
        if fused:
            extent, dim, step = fused[-1]
            if dim == atom.source_dim and step == atom.source_step * atom.extent:
                fused[-1] = (extent * atom.extent, dim, atom.source_step)
                continue
        fused.append((atom.extent, atom.source_dim, atom.source_step))
    return block.source_base, tuple(fused)


def _is_dense(base: tuple[int, ...], steps: Steps, block: Block) -> bool:
    return all(step == 1 for _, _, step in steps) and len({dim for _, dim, _ in steps}) == len(steps)


def _space(base: tuple[int, ...], steps: Steps, dtype: torch.dtype) -> Relation:
    """A message space as a relation to the source tensor."""
    shape = [1] * len(base)
    atoms = []
    for extent, dim, step in reversed(steps):
        atoms.append(Atom(extent, dim, step, dim, shape[dim]))
        shape[dim] *= extent
    block = Block("", tuple(reversed(atoms)), base, (0,) * len(base))
    return Relation(tuple(shape), dtype, (block,))


def _in_space(block: Block, base: tuple[int, ...], steps: Steps) -> Block:
    """A block that reads the source tensor, as one that reads a message space."""
    places: dict[int, list[tuple[int, int, int]]] = {}
    for extent, dim, step in reversed(steps):
        inner = places.setdefault(dim, [])
        inner.append((step, inner[-1][1] * inner[-1][2] if inner else 1, extent))

    def place(dim: int, distance: int) -> int:
        """What a distance in the source along an axis is in the space."""
        total = 0
        for step, place, _ in reversed(places.get(dim, [])):
            count, distance = divmod(distance, step)
            total += count * place
        assert not distance
        return total

    atoms = tuple(Atom(n, p, place(p, s), q, d) for n, p, s, q, d in block.atoms)
    start = tuple(place(k, s - b) for k, (s, b) in enumerate(zip(block.source_base, base, strict=True)))
    return Block("", atoms, start, block.dest_base, block.ops)


def _in_order(block: Block, memory: Tensor | None, base: Sequence[int], box: Box) -> Tensor | None:
    """The elements that a block reads of `memory`, as a vector of bytes, if they lie there in the order of the box."""
    assert memory is not None
    if memory.is_conj() or memory.is_neg():
        return None
    strides = memory.stride()
    place, width = {}, 1
    for dim in reversed(range(len(box.size))):
        place[dim] = width
        width *= box.size[dim]
    for atom in block.atoms:
        if atom.source_step * strides[atom.source_dim] != atom.dest_step * place[atom.dest_dim]:
            return None
    start = memory.storage_offset() + sum(b * s for b, s in zip(base, strides, strict=True))
    if block.volume != box.volume:
        return None
    return memory.detach().as_strided((box.volume,), (1,), start).view(torch.uint8)
