"""What one rank adds to a checkpoint, ready to be written: by then no other memory of the run is looked at."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oarlock.checkpoint.boxes import Box
from oarlock.checkpoint.distribution import FilePlan, GroupPlan, Table, describe_shards, distribute, file_names, split
from oarlock.checkpoint.export import ExportPlan, Pieces
from oarlock.checkpoint.manifest import FileEntry, check_plain_name, encode_entry, piece_name
from oarlock.checkpoint.shards import Shard, find_ties, shard_of
from oarlock.checkpoint.tensor_file import HashedFile, write_tensor_file
from oarlock.digest import check_has_bytes
from oarlock.ranks import Ranks

_RANK_FILE = re.compile(r"rank-[0-9]+\.json")

TensorGroups = Mapping[str, Mapping[str, Tensor | Shard]]


@dataclass(frozen=True)
class Described:
    """What this rank holds of a group."""

    shards: dict[str, Shard]
    table: Table


def describe(groups: TensorGroups) -> dict[str, Described]:
    """Check groups of tensors and note which boxes of which tensors this rank holds.

    Raises:
        ValueError, TypeError: a name or a tensor that cannot be saved.
    """
    described = {}
    for group, tensors in groups.items():
        check_plain_name(group, "group of tensors")
        if "__metadata__" in tensors:
            raise ValueError(f"group {group!r}: '__metadata__' is reserved by safetensors; rename the tensor")
        for name in tensors:
            if not isinstance(name, str) or (not name.isascii() and any("\ud800" <= c <= "\udfff" for c in name)):
                raise ValueError(f"group {group!r}: a tensor's name is a text in Unicode, got {name!r}")
        shards = {name: shard_of(value) for name, value in tensors.items()}
        for shard in shards.values():
            check_has_bytes(shard.tensor)
        described[group] = Described(shards, describe_shards(shards, find_ties(shards)))
    return described


@dataclass(frozen=True)
class GroupContent:
    """A group's plan, and the boxes that this rank gives to it."""

    plan: GroupPlan | ExportPlan
    pieces: Pieces


@dataclass(frozen=True)
class Content:
    """Everything that a rank writes.

    Attributes:
        step: training step.
        rank: this one.
        state: of the whole checkpoint, for the manifest; JSON-able.
        groups: shared by all ranks.
        own_groups: of this rank alone.
        copies: what this rank holds of the shared groups and others write.
        files: name -> bytes.
    """

    step: int
    rank: int
    state: Any
    groups: dict[str, GroupContent]
    own_groups: dict[str, GroupContent]
    copies: dict[str, GroupContent]
    files: dict[str, bytes]

    def tensors(self) -> Iterator[Tensor]:
        """All memory that is going to be written."""
        for content in (*self.groups.values(), *self.own_groups.values(), *self.copies.values()):
            yield from content.pieces.values()

    def with_tensors(self, tensors: Iterator[Tensor]) -> "Content":
        """The same with other memory, in the order of `tensors`."""

        def moved(groups: dict[str, GroupContent]) -> dict[str, GroupContent]:
            return {
                group: replace(content, pieces={key: next(tensors) for key in content.pieces})
                for group, content in groups.items()
            }

        state = json.loads(json.dumps(self.state))
        groups, own_groups = moved(self.groups), moved(self.own_groups)  # in the order of `tensors`
        return replace(self, state=state, groups=groups, own_groups=own_groups, copies=moved(self.copies))

    def write(self, folder: Path, ranks: Ranks) -> dict[str, Any]:
        """Write this rank's files; all ranks call it.

        Returns:
            What the manifest says about them, JSON-able: `files`, `rank_tensors` and `copies`.
        """
        files = _Files(folder)
        exports = [content for content in self.groups.values() if isinstance(content.plan, ExportPlan)]
        if exports:
            with ranks.together():
                for content in exports:
                    assert isinstance(content.plan, ExportPlan)
                    for name, entry in content.plan.write(folder, ranks, content.pieces).items():
                        files.record(name, entry)
        for content in self.groups.values():
            if isinstance(content.plan, GroupPlan):
                files.add_group(content, self.rank)
            if content.plan.files[0].rank == self.rank and (weight_map := content.plan.weight_map):
                index = {"metadata": {"total_size": content.plan.num_bytes}, "weight_map": weight_map}
                files.add(f"{content.plan.group}.safetensors.index.json", json.dumps(index, indent=1).encode())
        own = {}
        for group, content in self.own_groups.items():
            files.add_group(content, 0)
            own[group] = {name: encode_entry(entry) for name, entry in content.plan.entries.items()}
        copies = {}
        for group, content in self.copies.items():
            files.add_group(content, self.rank)
            copies[group] = {file.name: [[name, *box] for name, box in file.pieces] for file in content.plan.files}
        written = list(files.entries)
        for name, data in self.files.items():
            files.add(name, data)
        return {"files": files.entries, "rank_tensors": own, "copies": {"files": written, "groups": copies}}


def pieces_of(plan: GroupPlan | ExportPlan, rank: int, shards: Mapping[str, Shard]) -> dict[tuple[str, Box], Tensor]:
    """Views of the boxes that a rank gives to a plan."""
    views: dict[str, dict[Box, Tensor]] = {}
    pieces = {}
    for name, box in plan.owned(rank):
        if name not in views:
            views[name] = dict(shards[name].views())
        empty = torch.empty(box.size, dtype=shards[name].dtype, device="cpu")
        pieces[name, box] = views[name][box].resolve_conj().resolve_neg() if box.volume else empty
    return pieces


def own_content(group: str, described: Described, rank: int, max_bytes: int) -> GroupContent:
    """A group of this rank alone."""
    plan = distribute(f"{group}-rank-{rank}", [described.table], max_bytes)
    return GroupContent(plan, pieces_of(plan, 0, described.shards))


def copy_content(group: str, described: Described, plan: GroupPlan, rank: int, max_bytes: int) -> GroupContent:
    """The boxes that a rank holds and does not give to a plan, in files of its own."""
    owned = set(plan.owned(rank))
    pieces, num_bytes = {}, {}
    for name, shard in described.shards.items():
        for box, view in shard.views():
            if box.volume and not plan.entries[name].same_as and (name, box) not in owned:
                pieces[name, box] = view
                num_bytes[name, box] = box.volume * shard.dtype.itemsize
    parts = split(pieces, num_bytes.__getitem__, max_bytes)
    names = file_names(f"{group}-copy-{rank}", len(parts)) if parts else []
    files = tuple(FilePlan(name, rank, tuple(part)) for name, part in zip(names, parts, strict=True))
    return GroupContent(GroupPlan(f"{group}-copy-{rank}", files, plan.entries, sum(num_bytes.values())), pieces)


def read_files(files: Mapping[str, bytes | str | PathLike[str]]) -> dict[str, bytes]:
    """The contents of files that the caller adds.

    Raises:
        ValueError: a name that cannot be one of a file here; OSError: a file cannot be read.
    """
    for name in files:
        if _RANK_FILE.fullmatch(name):
            raise ValueError(f"the file {name!r} is where `rank_state` is kept; choose another name")
    return {
        check_plain_name(name, "file"): content if isinstance(content, bytes) else Path(content).read_bytes()
        for name, content in files.items()
    }


@dataclass
class _Files:
    """The files that one rank adds, with what the manifest says about them (JSON-able)."""

    folder: Path
    entries: dict[str, Sequence[Any]] = field(default_factory=dict)

    def add(self, name: str, data: bytes) -> None:
        with HashedFile(self.folder / name) as file:
            file.write(data)
        self.record(name, file.entry)

    def add_group(self, content: GroupContent, rank: int) -> None:
        for file in content.plan.files:
            if file.rank == rank:
                tensors = {}
                for name, box in file.pieces:
                    shape = content.plan.entries[name].shape
                    tensors[piece_name(name, shape, box)] = content.pieces[name, box]
                self.record(file.name, write_tensor_file(self.folder / file.name, tensors))

    def record(self, name: str, entry: FileEntry) -> None:
        self.entries[name] = [entry.bytes, entry.digest, entry.blocks]
