"""Loading: everything is checked first (sizes, digests, manifest), tensors are read when asked for."""

import json
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from oarlock.checkpoint.aoa import AOA, AOAError
from oarlock.checkpoint.boxes import Box
from oarlock.checkpoint.derived import Derived
from oarlock.checkpoint.directory import list_checkpoints
from oarlock.checkpoint.dtypes import dtype_of
from oarlock.checkpoint.exchange import Exchange
from oarlock.checkpoint.export import check_stored, compile_export
from oarlock.checkpoint.loading import LoadReport, Strict, Verify
from oarlock.checkpoint.manifest import ADVICE, CheckpointError, Manifest, TensorEntry, piece_name, read_manifest
from oarlock.checkpoint.mapped_file import MappedFile
from oarlock.checkpoint.near_miss import near_names
from oarlock.checkpoint.shards import Shard
from oarlock.checkpoint.source import TensorSource
from oarlock.checkpoint.stored import StoredPiece, StoredTensor
from oarlock.digest import file_digest
from oarlock.ranks import Ranks


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk, opened by load_checkpoint.

    `state` is the JSON state given to save_checkpoint, `world_size` the number of ranks that saved.
    """

    path: Path
    step: int
    world_size: int
    state: Any
    _manifest: Manifest = field(repr=False)
    _verify: Verify = field(repr=False)
    _files: dict[str, MappedFile] = field(default_factory=dict, repr=False)

    def groups(self, *, rank: int | None = None) -> list[str]:
        """Names of the groups of tensors; with `rank`, of that rank's own groups."""
        return list(self._table(rank))

    def names(self, group: str, *, rank: int | None = None) -> list[str]:
        """Names of the tensors of a group, in the order in which they were saved."""
        return list(self._offered(group, rank))

    def shapes(self, group: str, *, rank: int | None = None) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors of a group by name; nothing is read."""
        return {name: tensor.shape for name, tensor in self._offered(group, rank).items()}

    def tensors(
        self,
        group: str,
        *,
        rank: int | None = None,
        names: Collection[str] | None = None,
        device: torch.device | str = "cpu",
    ) -> dict[str, Tensor]:
        """Read a group of tensors, or some of it.

        Args:
            group: as given to save_checkpoint.
            rank: the rank whose `rank_tensors` are meant; None = the shared `tensors`.
            names: tensors to read; None = all.
            device: where the tensors are put.

        Returns:
            name -> tensor, new contiguous memory with the saved dtype, shape and bits; names that shared one tensor
            when saved share one again.

        Raises:
            ValueError: no such group, name or rank; CheckpointError: a file changed since load_checkpoint.
        """
        source = self.source(group, rank=rank)
        for name in names or ():
            if name not in source.tensors:
                raise ValueError(f"{self.path}: group {group!r}: {_unknown('tensor', name, source.tensors)}")
        return source.read(names, device=device)

    def source(self, group: str, *, rank: int | None = None) -> TensorSource:
        """The tensors of a group as something to read or load from; nothing is read yet. Arguments as for `tensors`."""
        return TensorSource(group, self._offered(group, rank), self._verify)

    def load(
        self,
        group: str,
        destinations: Mapping[str, Tensor | Shard],
        *,
        aoa: AOA | str | Sequence[str] | None = None,
        slots: bool = False,
        strict: Strict = "all",
        cast: bool = False,
        prefer: Collection[str] = (),
        exchange: Exchange = "auto",
        process_group: dist.ProcessGroup | None = None,
    ) -> LoadReport:
        """Fill tensors that exist from a group of the shared `tensors`; see TensorSource.load.

        If as many ranks load as saved, with `copies`, each reads its own files where they hold what it needs, and
        nothing is exchanged; the report's `foreign_files` are the others.
        """
        options: dict[str, Any] = {"strict": strict, "cast": cast, "prefer": prefer, "process_group": process_group}
        copies = self._manifest.copies
        ranks = Ranks(process_group)
        if not copies or ranks.size != self.world_size:
            return self.source(group).load(destinations, aoa=aoa, slots=slots, exchange=exchange, **options)
        own = copies[ranks.rank]
        source = TensorSource(group, self._offered(group, None, own.groups.get(group, {})), self._verify)
        report = source.load(destinations, aoa=aoa, slots=slots, exchange=False, **options)
        report.foreign_files = [name for name in report.files if name not in own.files]
        return report

    def rank_state(self, rank: int) -> Any:
        """The `rank_state` that a rank saved, None if it saved none."""
        self._table(rank)
        name = f"rank-{rank}.json"
        return json.loads(self.file(name).read_bytes()) if name in self._manifest.files else None

    def file(self, name: str) -> Path:
        """Path of a file of the checkpoint, such as one given in `files`; ValueError if it has none of that name."""
        if name not in self._manifest.files:
            raise ValueError(f"{self.path}: {_unknown('file', name, self._manifest.files)}")
        return self.path / name

    def _offered(
        self, group: str, rank: int | None, copies: Mapping[tuple[str, Box], str] = MappingProxyType({})
    ) -> dict[str, StoredTensor | Derived]:
        """The tensors of a group under its own names; equal objects for names that share one."""
        table = self._table(rank)
        if group not in table:
            raise ValueError(f"{self.path}: {_unknown('group of tensors', group, table)}")
        entries = table[group]
        stored = {name: self._stored(name, entry, copies) for name, entry in entries.items() if not entry.same_as}
        if rank is not None or group not in self._manifest.programs:
            return {name: stored[entry.same_as or name] for name, entry in entries.items()}
        program = self._manifest.programs[group]
        try:
            export = compile_export(group, program)
            check_stored(export, entries)
        except (ValueError, AOAError) as error:
            raise CheckpointError(
                f"{self.path}: the program of group {group!r} in the manifest fails: {error}"
            ) from None
        own = {name: Derived(relation, stored) for name, relation in export.recovered.items()}
        return {
            name: own[export.ties.get(name, name)] for name in program.tensors if name in own or name in export.ties
        }

    def _stored(self, name: str, entry: TensorEntry, copies: Mapping[tuple[str, Box], str]) -> StoredTensor:
        pieces = [
            StoredPiece(
                self._map(copies.get((name, piece.box), piece.file)),
                piece_name(name, entry.shape, piece.box),
                piece.box,
            )
            for piece in entry.pieces
        ]
        try:
            return StoredTensor(dtype_of(entry.dtype), entry.shape, tuple(pieces))
        except ValueError as error:
            raise CheckpointError(f"{self.path}: tensor {name!r}: {error}") from None

    def _map(self, name: str) -> MappedFile:
        if name not in self._files:
            entry = self._manifest.files[name]
            blocks = entry.blocks or ((entry.digest,) if entry.bytes else ())
            self._files[name] = MappedFile(self.path / name, entry.bytes, blocks)
        return self._files[name]

    def _table(self, rank: int | None) -> dict[str, dict[str, TensorEntry]]:
        if rank is None:
            return self._manifest.tensors
        if not 0 <= rank < self.world_size:
            raise ValueError(
                f"{self.path} was saved by {self.world_size} ranks and has no state for rank {rank}; "
                "resume with as many ranks, or start this rank's own state anew"
            )
        return self._manifest.rank_tensors[rank]


def load_checkpoint(path: str | PathLike[str], *, verify: bool | Literal["read"] = True) -> Checkpoint:
    """Open a checkpoint directory after checking it; tensors are read by Checkpoint.tensors or Checkpoint.load.

    Args:
        path: the checkpoint's directory (`root/step-XXXXXXXX`).
        verify: True = compare every file, the manifest included, with its digest now (reads all bytes once); "read" =
            the manifest now, and of the tensors the MiB that are read, before any is used; False = no digests. Sizes
            and the manifest's form are checked always.

    Raises:
        CheckpointError: missing, incomplete, damaged, or of another format version; names the file, what was expected,
            and what was found.
    """
    path = Path(path)
    manifest = read_manifest(path, verify=bool(verify))
    for name, entry in manifest.files.items():
        try:
            size = (path / name).stat().st_size
            now = verify is True or (verify == "read" and not name.endswith(".safetensors"))
            digest = file_digest(path / name) if now and size == entry.bytes else entry.digest
        except OSError as error:
            raise CheckpointError(f"{path / name}: {error.strerror}, expected {entry.bytes} bytes; {ADVICE}") from error
        if size != entry.bytes:
            raise CheckpointError(f"{path / name}: expected {entry.bytes} bytes, found {size}; {ADVICE}")
        if digest != entry.digest:
            raise CheckpointError(f"{path / name}: expected digest {entry.digest}, found {digest}; {ADVICE}")
    _check_tables(path, manifest)
    later: Verify = "read" if verify == "read" else "none"
    return Checkpoint(path, manifest.step, manifest.world_size, manifest.state, manifest, later)


def latest_checkpoint(root: str | PathLike[str], *, verify: bool = False, fall_back: bool = False) -> Path | None:
    """The checkpoint of the highest step in `root`; None if there is none.

    Args:
        root: folder of checkpoints.
        verify: check it as load_checkpoint does.
        fall_back: check, and if it is damaged take the newest intact one instead, with a warning that says why.

    Raises:
        CheckpointError: with `verify`, the newest is damaged; with `fall_back`, all are.
    """
    checkpoints = list_checkpoints(root)[::-1]
    if not checkpoints or not (verify or fall_back):
        return checkpoints[0] if checkpoints else None
    damages = []
    for path in checkpoints:
        try:
            load_checkpoint(path)
        except CheckpointError as error:
            if not fall_back:
                raise
            damages.append(str(error).removesuffix(f"; {ADVICE}"))
        else:
            if damages:
                warnings.warn(f"falling back to {path}, because {'; '.join(damages)}", stacklevel=2)
            return path
    raise CheckpointError(f"no checkpoint in {root} is intact: {'; '.join(damages)}")


def _check_tables(path: Path, manifest: Manifest) -> None:
    """What the manifest says must fit together; a digest cannot tell when verify is off or somebody edited it."""
    tables = [manifest.tensors, *manifest.rank_tensors]
    if len(manifest.rank_tensors) != manifest.world_size:
        found = len(manifest.rank_tensors)
        raise CheckpointError(f"{path}: the manifest has {found} ranks' tensors, expected {manifest.world_size}")
    if manifest.copies and len(manifest.copies) != manifest.world_size:
        found = len(manifest.copies)
        raise CheckpointError(f"{path}: the manifest has {found} ranks' copies, expected {manifest.world_size}")
    for copies in manifest.copies:
        for file in (*copies.files, *(file for places in copies.groups.values() for file in places.values())):
            if file not in manifest.files:
                raise CheckpointError(f"{path}: the manifest names no file {file!r}, in which copies would be")
    for group, entries in (item for table in tables for item in table.items()):
        for name, entry in entries.items():
            source = entries.get(entry.same_as) if entry.same_as else entry
            if source is None or not source.pieces or any(piece.file not in manifest.files for piece in source.pieces):
                raise CheckpointError(f"{path}: the manifest names no file for tensor {name!r} of group {group!r}")


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    known = list(known)
    near = near_names(name, known, count=3)
    listed = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"it has: {listed or 'none'}"
    return f"no {what} {name!r}; {hint}"
