"""Rewriting stored tensors as new files, some rows at a time: no whole model, and no whole tensor, is in memory."""

import itertools
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from oarlock.checkpoint.aoa import AOA, Relation, TensorSpec
from oarlock.checkpoint.at_once import Progress, run_at_once
from oarlock.checkpoint.boxes import Box
from oarlock.checkpoint.copied_file import CopiedFile
from oarlock.checkpoint.derived import Derived
from oarlock.checkpoint.distribution import file_names, split
from oarlock.checkpoint.draft import draft
from oarlock.checkpoint.dtypes import SAFETENSORS_NAMES, dtype_name
from oarlock.checkpoint.export import STEP_BYTES
from oarlock.checkpoint.manifest import (
    MANIFEST_NAME,
    CheckpointError,
    FileEntry,
    Manifest,
    PieceEntry,
    TensorEntry,
    encode_manifest,
)
from oarlock.checkpoint.mapped_file import MappedFile
from oarlock.checkpoint.source import TensorSource
from oarlock.checkpoint.stored import StoredPiece, StoredTensor
from oarlock.checkpoint.tensor_file import HashedFile, lay_out
from oarlock.checkpoint.transfers import Copy, Move, Transfer, moves, transfers
from oarlock.digest import tensor_bytes

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
GROUP = "model"
_MAX_THREADS = 4


@dataclass(frozen=True)
class Output:
    """A tensor to write: a relation to the source's tensors, or one of these as it is, in this dtype."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    made_of: Relation | StoredTensor | Derived

    @property
    def num_bytes(self) -> int:
        """Size of its data."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Conversion:
    """What `plan` found; nothing is written yet.

    Attributes:
        outputs: name -> tensor, in the order of writing.
        ties: name -> output with the same elements; stored once.
        dropped, unread: names of the source that a program drops, and that no statement reads (they keep their names).
        casts: (from, to) -> number of tensors.
    """

    source: TensorSource
    outputs: Mapping[str, Output]
    ties: Mapping[str, str]
    dropped: tuple[str, ...]
    unread: tuple[str, ...]
    casts: Mapping[tuple[str, str], int]

    def files(self, max_bytes: int) -> dict[str, list[str]]:
        """File -> names of its tensors."""
        parts = split(self.outputs, lambda name: self.outputs[name].num_bytes, max_bytes)
        return dict(zip(file_names(GROUP, len(parts)), parts, strict=True))

    def header(self, names: Iterable[str]) -> tuple[bytes, list[str]]:
        """The first bytes of a file, and the order of its tensors."""
        return lay_out({name: (self.outputs[name].dtype, self.outputs[name].shape) for name in names})

    def file_bytes(self, max_bytes: int) -> dict[str, int]:
        """File -> its size."""
        return {
            file: len(self.header(names)[0]) + sum(self.outputs[name].num_bytes for name in names)
            for file, names in self.files(max_bytes).items()
        }

    def write(
        self,
        folder: Path,
        *,
        max_bytes: int,
        manifest: bool,
        others: Mapping[str, bytes],
        progress: Progress,
    ) -> None:
        """Write the folder as a draft, sync it and rename it; what a killed run left of an earlier draft is removed.

        Args:
            folder: must not exist.
            max_bytes: per file of tensors; a larger tensor gets a file of its own.
            manifest: True = a checkpoint of Oarlock; False = a Hugging Face folder.
            others: further files.
            progress: called with the bytes of data written since the last call.

        Raises:
            CheckpointError: the folder exists or is being written, or the source is damaged; OSError: the disk is full.
                Nothing is left.
        """
        with draft(folder) as temporary:
            self._fill(temporary, max_bytes, manifest, others, progress)

    def _fill(
        self,
        folder: Path,
        max_bytes: int,
        manifest: bool,
        others: Mapping[str, bytes],
        progress: Progress,
    ) -> None:
        """The index comes first and config.json last, so half a folder is neither a set of files nor a model."""
        entries: dict[str, FileEntry] = {}
        checked: dict[Path, set[int]] = {}
        files = self.files(max_bytes)
        homes = {name: file_name for file_name, names in files.items() for name in names}

        def write(name: str, data: bytes) -> None:
            with HashedFile(folder / name) as file:
                file.write(data)
            entries[name] = file.entry

        if len(files) > 1:
            total = sum(output.num_bytes for output in self.outputs.values())
            index = {"metadata": {"total_size": total}, "weight_map": homes}
            write(f"{GROUP}.safetensors.index.json", json.dumps(index, indent=1).encode())
        jobs = [partial(self._write_file, folder / name, names, manifest, checked) for name, names in files.items()]
        for file_name, entry in zip(files, run_at_once(jobs, self._num_threads, progress), strict=True):
            if entry is not None:
                entries[file_name] = entry
        for name in sorted(others, key=lambda name: name == "config.json"):
            write(name, others[name])
        if manifest:
            tensors = {
                name: TensorEntry(
                    dtype_name(output.dtype), output.shape, (PieceEntry(homes[name], Box.whole(output.shape)),)
                )
                for name, output in self.outputs.items()
            } | {name: TensorEntry(same_as=first) for name, first in self.ties.items()}
            content = Manifest(0, 1, None, entries, {GROUP: tensors}, ({},), {}, ())
            with HashedFile(folder / MANIFEST_NAME) as file:
                file.write(encode_manifest(content))

    @property
    def _num_threads(self) -> int:
        """Files that are written at once; other formats keep what they read last, for one thread."""
        mapped = all(isinstance(piece.file, MappedFile) for piece, _ in pieces(self.source))
        return min(_MAX_THREADS, os.cpu_count() or 1) if mapped else 1

    def _write_file(
        self, path: Path, names: Sequence[str], hashed: bool, checked: dict[Path, set[int]], progress: Progress
    ) -> FileEntry | None:
        """Write one file of tensors; its digests, if it is hashed."""
        computed = any(isinstance(tensor, Derived) for tensor in self.source.tensors.values())
        step = STEP_BYTES // 4 if computed else STEP_BYTES  # what is computed needs memory of its own
        memory = torch.empty(step, dtype=torch.uint8, device="cpu")  # one: fresh pages cost more than copying
        header, ordered = self.header(names)
        with (HashedFile if hashed else CopiedFile)(path) as file:
            file.write(header)
            for name in ordered:
                for box in _rows(self.outputs[name], step):
                    rows, home = self._read(self.outputs[name], box, checked, memory)
                    data = tensor_bytes(rows).data
                    if isinstance(file, CopiedFile) and home is not None and len(data):
                        file.copy(home.path, rows.data_ptr() - home.bytes.data_ptr(), data, progress)
                    else:
                        file.write(data)
                        progress(len(data))
        return file.entry if isinstance(file, HashedFile) else None

    def _read(
        self, output: Output, box: Box, checked: dict[Path, set[int]], memory: torch.Tensor
    ) -> tuple[torch.Tensor, MappedFile | None]:
        """A box of an output: a view of the file where it lies there as it is, else in `memory` if that is enough."""
        num_bytes = box.volume * output.dtype.itemsize
        if num_bytes > len(memory):
            memory = torch.empty(num_bytes, dtype=torch.uint8, device="cpu")
        target = memory[:num_bytes].view(output.dtype).view(box.size)
        steps: list[Transfer]
        if isinstance(output.made_of, Relation):
            steps = list(moves(output.made_of.query(box.offset, box.size), self.source.tensors, target))
        else:
            steps = list(transfers(output.made_of, box, target))
        if self.source.verify == "read":
            for read in (read for step in steps for read in step.reads):
                done = checked.setdefault(read.file.path, set())
                blocks = read.blocks()
                read.file.check_blocks(blocks[[int(block) not in done for block in blocks]])
                done.update(blocks.tolist())
        if len(steps) == 1 and (found := _as_it_is(steps[0])) is not None:
            return found
        for step in steps:
            step.run()
        return target, None


def plan(source: TensorSource, program: str | None = None, dtype: torch.dtype | None = None) -> Conversion:
    """Work out what is written; only headers are read.

    Args:
        source: what to convert.
        program: in the AOA language, from the source's names to the new ones; None = as they are.
        dtype: of tensors of floating dtypes of 16 bits and more; router selection biases keep theirs.

    Raises:
        AOAError: the program does not fit; CheckpointError: the files are malformed, or nothing would be left.
    """
    check_layout(source)
    canonical = {id(tensor): name for name, tensor in reversed(list(source.tensors.items()))}
    found: dict[str, Relation | StoredTensor | Derived] = dict(source.tensors)
    dropped: frozenset[str] = frozenset()
    unread: frozenset[str] = frozenset()
    spoken: set[str] = set()
    if program is not None:
        specs = {name: TensorSpec(tensor.shape, tensor.dtype) for name, tensor in source.tensors.items()}
        compiled = AOA(program).compile(specs)
        found = dict(compiled.tensors)
        dropped, unread = compiled.dropped, compiled.unread - compiled.dropped
        spoken = set(compiled.written)
    outputs: dict[str, Output] = {}
    ties: dict[str, str] = {}
    plain: dict[str, str] = {}  # source tensor -> output that is all of it, under whatever name
    casts: dict[tuple[str, str], int] = {}
    for name, made_of in found.items():
        if name not in spoken:
            key = canonical[id(source.tensors[name])]
            if key in plain:
                ties[name] = plain[key]
                continue
            plain[key] = name
        wanted = made_of.dtype
        if dtype is not None and wanted in FLOATS and not name.endswith("correction_bias"):
            wanted = dtype
        if wanted != made_of.dtype:
            pair = dtype_name(made_of.dtype), dtype_name(wanted)
            casts[pair] = casts.get(pair, 0) + 1
            if isinstance(made_of, Relation):
                made_of = made_of.cast(wanted)
        outputs[name] = Output(wanted, made_of.shape, made_of)
    if not outputs:
        raise CheckpointError(f"{source.label}: no tensor would be written")
    if "__metadata__" in outputs:
        raise CheckpointError("'__metadata__' is reserved by safetensors; rename that tensor")
    return Conversion(source, outputs, ties, tuple(sorted(dropped)), tuple(sorted(unread)), casts)


def check_layout(source: TensorSource) -> None:
    """Raise CheckpointError where a file lacks a tensor that is expected in it, or two of its tensors overlap."""
    files: dict[Path, MappedFile] = {}
    for piece, dtype in pieces(source):
        piece.file.check(piece.name, dtype, piece.box.size)
        if isinstance(piece.file, MappedFile):
            files[piece.file.path] = piece.file
    for path, file in files.items():
        spans = [(*entry["data_offsets"], name) for name, entry in file.header.items() if name != "__metadata__"]
        spans = sorted(span for span in spans if span[0] < span[1])
        for (_, stop, name), (start, _, other) in itertools.pairwise(spans):
            if start < stop:
                raise CheckpointError(f"{path}: tensors {name!r} and {other!r} overlap; it is malformed")


def pieces(source: TensorSource) -> Iterable[tuple[StoredPiece, torch.dtype]]:
    """All pieces of a source's files, each with its dtype."""
    seen: set[int] = set()
    for tensor in source.tensors.values():
        for stored in tensor.stored.values() if isinstance(tensor, Derived) else (tensor,):
            if id(stored) not in seen:
                seen.add(id(stored))
                yield from ((piece, stored.dtype) for piece in stored.pieces)


def unnamed(conversion: Conversion) -> list[str]:
    """Outputs whose dtype safetensors cannot name, which only a checkpoint of Oarlock can hold."""
    return [name for name, output in conversion.outputs.items() if output.dtype not in SAFETENSORS_NAMES]


def _as_it_is(step: Transfer) -> tuple[torch.Tensor, MappedFile] | None:
    """A view of a file that has the elements of a step in their order and dtype, if there is one."""
    if isinstance(step, Copy):
        reads = list(step.reads)
    elif isinstance(step, Move) and not step.block.ops:
        dims = [atom.source_dim for atom in step.block.atoms if atom.source_step == 1]
        reads = list(step.reads) if dims == sorted(set(dims)) and len(dims) == len(step.block.atoms) else []
    else:
        return None
    if len(reads) != 1 or reads[0].stored.dtype != step.target.dtype:
        return None
    file, found = reads[0].file, reads[0].tensor()[reads[0].box.slices]
    if not isinstance(file, MappedFile) or not found.is_contiguous():
        return None
    inside = 0 <= found.data_ptr() - file.bytes.data_ptr() < len(file.bytes)  # else it is a copy, for its alignment
    return (found, file) if inside else None


def _rows(output: Output, most: int) -> Iterable[Box]:
    shape, row = output.shape, math.prod(output.shape[1:]) * output.dtype.itemsize
    if not shape or row * shape[0] <= most:
        yield Box.whole(shape)
        return
    step = max(1, most // row)
    for start in range(0, shape[0], step):
        yield Box((start,) + (0,) * (len(shape) - 1), (min(step, shape[0] - start), *shape[1:]))
