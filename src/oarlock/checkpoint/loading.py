"""Loading stored tensors into tensors that exist: plan and validate everything, verify what is read, then copy.

Each rank reads exactly the boxes that its own tensors need, straight from the files; nothing is sent between ranks.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from oarlock.checkpoint.agreement import all_or_none
from oarlock.checkpoint.boxes import Box, explain_cover
from oarlock.checkpoint.manifest import CheckpointError
from oarlock.checkpoint.shards import Shard
from oarlock.ranks import Ranks

Strict = Literal["all", "destination", "none"]
Verify = Literal["read", "none"]


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


@dataclass(frozen=True)
class Copy:
    """One transfer: a box of a stored piece (counted from the piece's corner) to memory of the same shape."""

    stored: StoredTensor
    piece: StoredPiece
    source: Box
    target: Tensor

    def run(self) -> None:
        """Copy, converting the dtype if the target has another."""
        self.target.copy_(self._piece_view()[self.source.slices])

    def blocks(self) -> np.ndarray:
        """The MiB of the file that are read."""
        return self.piece.file.blocks_of(self.piece.name, self.stored.dtype, self.piece.box.size, self.source)

    def _piece_view(self) -> Tensor:
        return self.piece.file.tensor(self.piece.name, self.stored.dtype, self.piece.box.size)


@dataclass
class LoadReport:
    """What a load did: names of destinations that were filled, that had no source, and of sources without one."""

    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    bytes_needed: int = 0
    """Bytes of the files' elements that this rank copied."""
    num_files: int = 0
    """Files that this rank read."""

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} tensors, {self.bytes_needed / 2**20:.1f} MiB from {self.num_files} files"]
        for what in ("missing", "unexpected"):
            if names := getattr(self, what):
                parts.append(f"{len(names)} {what}: {_some(names)}")
        return "; ".join(parts)


def load_tensors(
    what: str,
    stored: Mapping[str, StoredTensor],
    destinations: Mapping[str, Shard],
    *,
    strict: Strict = "all",
    cast: bool = False,
    verify: Verify = "read",
    ranks: Ranks,
) -> LoadReport:
    """Fill `destinations` from the stored tensors of the same names; see Checkpoint.load."""
    failure = f"loading {what} failed, nothing was changed"
    report = LoadReport()

    def plan() -> tuple[list[Copy], dict[int, PieceFile]]:
        copies = _plan(stored, destinations, report, strict, cast)
        files = {id(copy.piece.file): copy.piece.file for copy in copies}
        for copy in copies:
            copy.piece.file.check(copy.piece.name, copy.stored.dtype, copy.piece.box.size)
        report.bytes_needed = sum(copy.source.volume * copy.stored.dtype.itemsize for copy in copies)
        report.num_files = len(files)
        return copies, files

    planned: list[tuple[list[Copy], dict[int, PieceFile]]] = []
    all_or_none(ranks, lambda: planned.append(plan()), failure)
    copies, files = planned[0]
    if verify == "read":
        _verify(copies, files, ranks, failure)
    with torch.no_grad():
        for copy in copies:
            copy.run()
    return report


def _plan(
    stored: Mapping[str, StoredTensor],
    destinations: Mapping[str, Shard],
    report: LoadReport,
    strict: Strict,
    cast: bool,
) -> list[Copy]:
    copies: list[Copy] = []
    problems: list[str] = []
    for name, shard in destinations.items():
        if name not in stored:
            report.missing.append(name)
            continue
        source = stored[name]
        if problem := _misfit(source, shard, cast):
            problems.append(f"{name}: {problem}")
            continue
        report.loaded.append(name)
        for box, view in shard.views():
            copies += _copies(source, box, view)
    report.unexpected = [name for name in stored if name not in destinations]
    if strict != "none" and report.missing:
        problems.append(_absent("have no source", report.missing, report.unexpected or list(stored)))
    if strict == "all" and report.unexpected:
        problems.append(_absent("of the checkpoint have no destination", report.unexpected, list(destinations)))
    if problems:
        more = f"; and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise CheckpointError("; ".join(problems[:8]) + more)
    return copies


def _copies(source: StoredTensor, box: Box, view: Tensor) -> Iterable[Copy]:
    """The transfers that fill `view`, which is the box of the global tensor."""
    pieces = source.overlapping(box) if box.volume else []
    for piece in pieces:
        common = piece.box.intersect(box)
        if common is not None:
            yield Copy(source, piece, common.within(piece.box), view[common.within(box).slices])


def _misfit(source: StoredTensor, shard: Shard, cast: bool) -> str | None:
    tensor = shard.tensor
    if source.shape != shard.shape:
        return f"the checkpoint has shape {list(source.shape)}, the destination {list(shard.shape)}"
    if source.dtype != tensor.dtype and not cast:
        return f"the checkpoint has {source.dtype}, the destination {tensor.dtype}; pass cast=True to convert"
    if tensor.device.type == "meta":
        return "the destination is a meta tensor without memory; materialize it first (to_empty)"
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        return f"the destination is expanded (strides {list(tensor.stride())}), so its elements share memory"
    if explain_cover(source.shape, [piece.box for piece in source.pieces]):
        return "the checkpoint holds it only in part"
    return None


def _verify(copies: Iterable[Copy], files: Mapping[int, PieceFile], ranks: Ranks, failure: str) -> None:
    """Check every MiB that some rank reads, each by one of the ranks that do."""
    needed: dict[int, list[np.ndarray]] = {}
    for copy in copies:
        needed.setdefault(id(copy.piece.file), []).append(copy.blocks())
    own = {files[key].path.name: np.unique(np.concatenate(parts)) for key, parts in needed.items()}
    if ranks.size > 1:
        told = ranks.gather({name: _pack(blocks) for name, blocks in own.items()})
        own = {name: _share(name, blocks, told, ranks.rank) for name, blocks in own.items()}
    by_name = {file.path.name: file for file in files.values()}

    def check() -> None:
        for name, blocks in own.items():
            by_name[name].check_blocks(blocks)

    all_or_none(ranks, check, failure)


def _pack(blocks: np.ndarray) -> str:
    marks = np.zeros(int(blocks.max()) + 1 if len(blocks) else 0, dtype=bool)
    marks[blocks] = True
    return np.packbits(marks).tobytes().hex()


def _share(name: str, blocks: np.ndarray, told: list[dict[str, str]], rank: int) -> np.ndarray:
    """Those of `blocks` that this rank checks: of the ranks that read one, each takes its turn."""
    size = int(blocks.max()) + 1 if len(blocks) else 0
    reads = np.zeros((len(told), size), dtype=bool)
    for other, table in enumerate(told):
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(table.get(name, "")), dtype=np.uint8))[:size].astype(bool)
        reads[other, : len(bits)] = bits
    before = reads[:rank].sum(axis=0)[blocks]
    return blocks[blocks % reads.sum(axis=0)[blocks] == before]


def _absent(problem: str, names: list[str], known: list[str]) -> str:
    near = difflib.get_close_matches(names[0], known, n=1)
    return f"{len(names)} tensors {problem}: {_some(names)}" + (f" (did you mean {near[0]}?)" if near else "")


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
