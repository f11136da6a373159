"""A group stored as a Hugging Face checkpoint: whole tensors under other names, each file written by one rank.

A program in the AOA language says how the stored tensors are made of the group's. All ranks derive from it who sends
which elements to whom; they travel while the files are written, some rows of one tensor per file at a time.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, Self

import torch
from torch import Tensor

from oarlock.checkpoint.aoa import AOA, Atom, Block, Constant, Relation, TensorSpec
from oarlock.checkpoint.boxes import Box
from oarlock.checkpoint.distribution import FilePlan, Holders, Table, file_names, merge_tables, split
from oarlock.checkpoint.dtypes import dtype_name, dtype_of
from oarlock.checkpoint.manifest import FileEntry, PieceEntry, ProgramEntry, TensorEntry
from oarlock.checkpoint.tensor_file import HashedFile, lay_out
from oarlock.checkpoint.transfers import within
from oarlock.digest import tensor_bytes
from oarlock.ranks import Ranks

STEP_BYTES = 32 << 20
"""Most bytes of a tensor that a rank puts together at once (or one row)."""
_ALIGNMENT = 16  # of the parts in a message, so that any dtype can look at them

Pieces = Mapping[tuple[str, Box], Tensor]
"""Boxes of a group's tensors, in memory."""


@dataclass(frozen=True)
class Export:
    """What is stored, as relations to the group's tensors; and how these are recovered, by relations to what is stored.

    A name of the group that is tied to another one is not recovered itself: `ties` says which one is.
    """

    outputs: Mapping[str, Relation]
    recovered: Mapping[str, Relation]
    ties: Mapping[str, str]


def compile_export(group: str, program: ProgramEntry) -> Export:
    """Compile a group's program; of tied tensors that no statement names, one is stored.

    Raises:
        AOAError: the program does not fit the tensors; ValueError: it loses a part of one.
    """
    specs = {}
    for name, entry in program.tensors.items():
        real = program.tensors[entry.same_as] if entry.same_as else entry
        specs[name] = TensorSpec(real.shape, dtype_of(real.dtype))
    compiled = AOA(program.aoa).compile(specs, None)
    carried = {s for name in compiled.tensors if name in compiled.written for s in compiled.sources(name)}
    first = {name: entry.same_as or name for name, entry in program.tensors.items()}
    done = {first[name] for name in carried}
    outputs = {}
    for name, relation in compiled.tensors.items():
        if name not in compiled.written:
            if first[name] in done:
                continue
            done.add(first[name])
        outputs[name] = relation
    try:
        recovered = replace(compiled, tensors=outputs).reverse().tensors
    except ValueError as error:
        raise ValueError(f"group {group!r} could not be read again from what the program stores: {error}") from None
    home = {first[name]: name for name in recovered}
    ties = {name: home[first[name]] for name in specs if name not in recovered and first[name] in home}
    known = recovered.keys() | ties.keys() | compiled.dropped
    if lost := [name for name in specs if name not in known]:
        raise ValueError(
            f"group {group!r}: the program stores no element of {lost[0]!r}; say '{lost[0]} -> _' if that is meant"
        )
    return Export(outputs, recovered, ties)


def check_stored(export: Export, entries: Mapping[str, TensorEntry]) -> None:
    """Raise ValueError unless what the program makes is what is stored."""
    for name, relation in export.outputs.items():
        entry = entries.get(name, TensorEntry())
        made = dtype_name(relation.dtype)
        if (entry.dtype, entry.shape) != (made, relation.shape):
            found = f"{entry.dtype or None} {list(entry.shape)}"
            raise ValueError(f"it makes {name!r} {made} {list(relation.shape)}; stored is {found}")


@dataclass(frozen=True)
class ExportPlan:
    """The files of a group, what the manifest says about their tensors, and who sends what."""

    group: str
    program: ProgramEntry
    files: tuple[FilePlan, ...]
    entries: dict[str, TensorEntry]
    outputs: Mapping[str, Relation]
    senders: Mapping[str, Mapping[Box, int]]
    first: Mapping[str, str]
    """Name of the group -> the tied name under which it is sent."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(relation.num_elements * relation.dtype.itemsize for relation in self.outputs.values())

    @property
    def weight_map(self) -> dict[str, str]:
        """Tensor name -> file, for the index."""
        return {name: entry.pieces[0].file for name, entry in self.entries.items()}

    def owned(self, rank: int) -> list[tuple[str, Box]]:
        """The boxes that a rank gives to the files."""
        return [(name, box) for name, boxes in self.senders.items() for box, sender in boxes.items() if sender == rank]

    def write(self, folder: Path, ranks: Ranks, pieces: Pieces) -> dict[str, FileEntry]:
        """Write this rank's files; all ranks call it, with the boxes that they own, in a block of `ranks.together`.

        Raises:
            OSError: a file could not be written. OtherRankFailed: another rank failed.
        """
        with _Output(folder, self) as out:
            for steps in zip_longest(*(self._steps(rank) for rank in range(ranks.size))):
                parts = [[] if step is None else list(self._parts(step)) for step in steps]
                received = self._exchange(ranks, steps, parts, pieces)
                if (step := steps[ranks.rank]) is not None:
                    out.write(step, self._assemble(step, parts[ranks.rank], ranks.rank, received, pieces))
        return out.entries

    def _steps(self, rank: int) -> Iterator["_Step"]:
        for file in self.files:
            if file.rank == rank:
                for name in lay_out(self.specs(file))[1]:
                    relation = self.outputs[name]
                    for box in _rows(relation.shape, relation.dtype.itemsize):
                        yield _Step(file, name, box)

    def specs(self, file: FilePlan) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """What a file holds."""
        return {name: (self.outputs[name].dtype, self.outputs[name].shape) for name, _ in file.pieces}

    def _parts(self, step: "_Step") -> Iterator["_Part"]:
        """What a step is put together from."""
        for block in self.outputs[step.name].query(step.box.offset, step.box.size):
            if isinstance(block.source, Constant):
                yield _Part(step.file.rank, None, block)
                continue
            assert isinstance(block.source, str)
            name = self.first[block.source]
            reach = Box(*block.source_box())
            for box, sender in self.senders[name].items():
                if box.intersect(reach) is not None:
                    yield from (_Part(sender, (name, box), part) for part in within(block, box))

    def _exchange(
        self, ranks: Ranks, steps: Sequence["_Step | None"], parts: Sequence[Sequence["_Part"]], pieces: Pieces
    ) -> list[Tensor]:
        """The messages from all ranks to this one."""
        remote = [(to, part) for to in range(ranks.size) for part in parts[to] if part.sender != to]
        if not remote:
            return []
        outgoing: list[list[Tensor]] = [[] for _ in range(ranks.size)]
        sizes = [0] * ranks.size
        for to, part in remote:
            step = steps[to]
            assert step is not None
            num_bytes = part.message_bytes(self.outputs[step.name].dtype)
            if to == ranks.rank:
                sizes[part.sender] += num_bytes
            if part.sender == ranks.rank:
                message = torch.empty(num_bytes, dtype=torch.uint8, device="cpu")
                part.pack(pieces, part.elements(message, self.outputs[step.name].dtype))
                outgoing[to].append(message)
        nothing = torch.empty(0, dtype=torch.uint8, device="cpu")
        return ranks.exchange([torch.cat(messages) if messages else nothing for messages in outgoing], sizes)

    def _assemble(
        self, step: "_Step", parts: Sequence["_Part"], rank: int, received: Sequence[Tensor], pieces: Pieces
    ) -> Tensor:
        dtype = self.outputs[step.name].dtype
        target = torch.empty(step.box.size, dtype=dtype, device="cpu")
        places = [0] * len(received)
        for part in parts:
            if part.key is None:
                part.block.copy(target, target)
            elif part.sender == rank:
                part.block.copy(pieces[part.key], target, origin=part.key[1].offset)
            else:
                start = places[part.sender]
                places[part.sender] += part.message_bytes(dtype)
                message = received[part.sender][start : places[part.sender]]
                part.unpack(part.elements(message, dtype), target)
        return target


class _Step(NamedTuple):
    """Some rows of a tensor, to be appended to a file."""

    file: FilePlan
    name: str
    box: Box


class _Part(NamedTuple):
    """The elements of a block that lie in one box of one rank; without a key a constant."""

    sender: int
    key: tuple[str, Box] | None
    block: Block

    def message_bytes(self, dtype: torch.dtype) -> int:
        """How long the message with the elements is."""
        return -(-self.block.volume * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT

    def elements(self, message: Tensor, dtype: torch.dtype) -> Tensor:
        """The elements in a message, one dim per atom."""
        return message[: self.block.volume * dtype.itemsize].view(dtype).view(self.block.extents)

    def pack(self, pieces: Pieces, elements: Tensor) -> None:
        """Fill a message, on the rank that holds the elements."""
        assert self.key is not None
        block = self.block
        atoms = tuple(a._replace(dest_dim=k, dest_step=1) for k, a in enumerate(block.atoms))
        packed = Block(block.source, atoms, block.source_base, (0,) * len(atoms), block.ops)
        packed.copy(pieces[self.key], elements, origin=self.key[1].offset)

    def unpack(self, elements: Tensor, target: Tensor) -> None:
        """Put the elements of a message where they belong."""
        block = self.block
        atoms = tuple(Atom(a.extent, k, 1, a.dest_dim, a.dest_step) for k, a in enumerate(block.atoms))
        Block("", atoms, (0,) * len(atoms), block.dest_base).copy(elements, target)


class _Output:
    """This rank's files, one after the other."""

    def __init__(self, folder: Path, plan: ExportPlan) -> None:
        self.entries: dict[str, FileEntry] = {}
        self._folder = folder
        self._plan = plan
        self._file: FilePlan | None = None
        self._open: HashedFile | None = None

    def __enter__(self) -> Self:
        return self

    def write(self, step: _Step, rows: Tensor) -> None:
        """Append rows to the file of a step."""
        if step.file is not self._file:
            self._finish()
            self._file = step.file
            self._open = HashedFile(self._folder / step.file.name).__enter__()
            self._open.write(lay_out(self._plan.specs(step.file))[0])
        assert self._open is not None
        self._open.write(tensor_bytes(rows).data)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._finish()
        elif self._open is not None:
            self._open.__exit__(kind)

    def _finish(self) -> None:
        if self._open is not None and self._file is not None:
            done, self._open = self._open, None
            done.__exit__(None)
            self.entries[self._file.name] = done.entry


def plan_export(group: str, text: str, tables: Sequence[Table], max_bytes: int) -> ExportPlan:
    """Who writes which file of a group, and who sends what to it.

    Raises:
        AOAError, ValueError: the program does not fit, or ranks do not hold every tensor once; see merge_tables.
    """
    holders = merge_tables(group, tables)
    program = ProgramEntry(text, {name: _entry(holder) for name, holder in holders.items()})
    export = compile_export(group, program)
    if not export.outputs:
        raise ValueError(f"group {group!r} has no tensors to store under Hugging Face's names")
    sizes = {name: relation.num_elements * relation.dtype.itemsize for name, relation in export.outputs.items()}
    parts = split(export.outputs, sizes.__getitem__, max_bytes)
    loads = [0] * len(tables)
    files, entries = [], {}
    for file_name, names in zip(file_names(group, len(parts)), parts, strict=True):
        writer = min(range(len(tables)), key=lambda rank: (loads[rank], rank))
        loads[writer] += sum(sizes[name] for name in names)
        files.append(FilePlan(file_name, writer, tuple((n, Box.whole(export.outputs[n].shape)) for n in names)))
        for name in names:
            relation, box = export.outputs[name], Box.whole(export.outputs[name].shape)
            entries[name] = TensorEntry(dtype_name(relation.dtype), relation.shape, (PieceEntry(file_name, box),))
    first = {name: holder.same_as or name for name, holder in holders.items()}
    senders = _choose_senders(holders, files, export.outputs, first, len(tables))
    return ExportPlan(group, program, tuple(files), entries, export.outputs, senders, first)


def _entry(holder: Holders) -> TensorEntry:
    return TensorEntry(same_as=holder.same_as) if holder.same_as else TensorEntry(holder.dtype, holder.shape)


def _choose_senders(
    holders: Mapping[str, Holders],
    files: Sequence[FilePlan],
    outputs: Mapping[str, Relation],
    first: Mapping[str, str],
    num_ranks: int,
) -> dict[str, dict[Box, int]]:
    """Who gives each box: a rank that writes it, else the one that gives the fewest bytes so far."""
    writers: dict[str, dict[int, None]] = {}
    for file in files:
        for name, _ in file.pieces:
            for block in outputs[name].blocks:
                if isinstance(block.source, str):
                    writers.setdefault(first[block.source], {})[file.rank] = None
    loads = [0] * num_ranks
    senders: dict[str, dict[Box, int]] = {}
    for name, wanted in writers.items():
        senders[name] = {}
        for box, ranks in holders[name].ranks_of.items():
            if not box.volume:
                continue
            near = [rank for rank in ranks if rank in wanted]
            sender = min(near or ranks, key=lambda rank: (loads[rank], rank))
            if not near:
                loads[sender] += holders[name].num_bytes(box)
            senders[name][box] = sender
    return senders


def _rows(shape: tuple[int, ...], itemsize: int) -> Iterator[Box]:
    """The boxes of consecutive rows that a tensor is put together by, at least one."""
    row = math.prod(shape[1:]) * itemsize
    if not shape or row * shape[0] <= STEP_BYTES:
        yield Box.whole(shape)
        return
    step = max(1, STEP_BYTES // row)
    for start in range(0, shape[0], step):
        yield Box((start,) + (0,) * (len(shape) - 1), (min(step, shape[0] - start), *shape[1:]))
