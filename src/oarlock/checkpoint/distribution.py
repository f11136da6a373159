"""Who writes what: every element of every tensor exactly once, in files of bounded size, balanced by bytes.

Each rank tells which boxes of which tensors it holds; from these tables all ranks derive the same distribution, so
nothing else is exchanged before the data is written.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from oarlock.checkpoint.boxes import Box, explain_cover
from oarlock.checkpoint.dtypes import dtype_name, dtype_of
from oarlock.checkpoint.manifest import PieceEntry, TensorEntry, piece_name
from oarlock.checkpoint.shards import Shard
from oarlock.digest import Digest64
from oarlock.ranks import Ranks

T = TypeVar("T")

Table = dict[str, dict[str, Any]]
"""What one rank holds of a group: name -> {"dtype", "shape", "boxes": [[offset, size], ...], "same_as"}; JSON."""


@dataclass(frozen=True)
class FilePlan:
    """A file of a group: its name, the rank that writes it, and the boxes of tensors in it."""

    name: str
    rank: int
    pieces: tuple[tuple[str, Box], ...]


@dataclass(frozen=True)
class GroupPlan:
    """The files of a group, and what the manifest says about its tensors."""

    group: str
    files: tuple[FilePlan, ...]
    entries: dict[str, TensorEntry]
    num_bytes: int

    def owned(self, rank: int) -> list[tuple[str, Box]]:
        """The boxes that a rank gives to the files."""
        return [piece for file in self.files if file.rank == rank for piece in file.pieces]

    @property
    def weight_map(self) -> dict[str, str] | None:
        """Tensor name -> file, as other safetensors readers want it; None for one file and for tensors in pieces."""
        if len(self.files) < 2 or any(len(entry.pieces) > 1 for entry in self.entries.values()):
            return None
        return {name: entry.pieces[0].file for name, entry in self.entries.items() if entry.pieces}


def describe_shards(shards: Mapping[str, Shard], ties: Mapping[str, str]) -> Table:
    """This rank's table of a group."""
    table: Table = {}
    for name, shard in shards.items():
        boxes = [[piece.box.offset, piece.box.size] for piece in shard.pieces if piece.box.volume]
        table[name] = {"dtype": dtype_name(shard.dtype), "shape": shard.shape, "boxes": boxes}
        if name in ties:
            table[name]["same_as"] = ties[name]
    return table


def exchange(ranks: Ranks, tables: dict[str, Table]) -> list[dict[str, Table]]:
    """The tables of all ranks; where all are equal (replicas), only their digests travel."""
    if ranks.size == 1:
        return [tables]
    digest = Digest64().update(repr(tables).encode()).hexdigest()
    if len(set(ranks.gather(digest))) == 1:
        return [tables] * ranks.size
    return ranks.gather(tables)


def distribute(group: str, tables: Sequence[Table], max_bytes: int) -> GroupPlan:
    """The distribution of a group over ranks and files.

    A box that several ranks hold is written by the one with the fewest bytes so far, largest boxes first.

    Raises:
        ValueError: ranks differ about a tensor's shape or dtype, or their boxes do not make up the tensor; or a tensor
            is called as a file would call a part of another one.
    """
    holders = merge_tables(group, tables)
    stored = {name: holder for name, holder in holders.items() if not holder.same_as}
    _check_names(group, stored)
    owned: list[list[tuple[str, Box]]] = [[] for _ in tables]
    place = {name: index for index, name in enumerate(stored)}
    for (name, box), rank in _choose(stored, len(tables)).items():
        owned[rank].append((name, box))
    parts = []
    for rank, pieces in enumerate(owned):
        pieces.sort(key=lambda piece: (place[piece[0]], piece[1].offset))
        parts += [(rank, part) for part in split(pieces, lambda p: stored[p[0]].num_bytes(p[1]), max_bytes)]
    parts = parts or [(0, [])]
    names = file_names(group, len(parts))
    files = [FilePlan(name, rank, tuple(part)) for name, (rank, part) in zip(names, parts, strict=True)]
    num_bytes = sum(holder.num_bytes(Box.whole(holder.shape)) for holder in stored.values())
    return GroupPlan(group, tuple(files), _entries(holders, files), num_bytes)


@dataclass(frozen=True)
class Holders:
    """A tensor, and the ranks that hold each of its boxes."""

    dtype: str
    shape: tuple[int, ...]
    ranks_of: dict[Box, list[int]]
    same_as: str

    def num_bytes(self, box: Box) -> int:
        """Size of a box in a file."""
        return box.volume * dtype_of(self.dtype).itemsize


def merge_tables(group: str, tables: Sequence[Table]) -> dict[str, Holders]:
    """What all ranks together hold of a group.

    Raises:
        ValueError: ranks differ about a tensor's shape or dtype, or their boxes do not make up the tensor.
    """
    return {name: _merge(group, name, tables) for name in dict.fromkeys(n for table in tables for n in table)}


def _check_names(group: str, stored: Mapping[str, Holders]) -> None:
    if not any("@" in name for name in stored):
        return
    for name, holders in stored.items():
        for box in holders.ranks_of:
            part = piece_name(name, holders.shape, box)
            if part != name and part in stored:
                raise ValueError(
                    f"group {group!r}: {part!r} is what a file calls a part of {name!r}; rename the tensor {part!r}"
                )


def _merge(group: str, name: str, tables: Sequence[Table]) -> Holders:
    """What all ranks together hold of a tensor."""
    told = {rank: table[name] for rank, table in enumerate(tables) if name in table}
    first_rank, first = next(iter(told.items()))
    for rank, entry in told.items():
        for what in ("dtype", "shape"):
            if list(entry[what]) != list(first[what]):
                raise ValueError(
                    f"group {group!r}: tensor {name!r} has {what} {entry[what]} on rank {rank} and {first[what]} on "
                    f"rank {first_rank}; pass each rank's part of one global tensor (a DTensor or a Shard)"
                )
    shape = tuple(first["shape"])
    ranks_of: dict[Box, list[int]] = {}
    if not math.prod(shape):
        ranks_of[Box.whole(shape)] = [first_rank]
    for rank, entry in told.items():
        for offset, size in entry["boxes"]:
            ranks_of.setdefault(Box(tuple(offset), tuple(size)), []).append(rank)
    if problem := explain_cover(shape, list(ranks_of)):
        raise ValueError(f"group {group!r}: the ranks do not hold tensor {name!r} exactly once: {problem}")
    ties = {entry.get("same_as", "") for entry in told.values() if entry["boxes"] or not math.prod(shape)}
    return Holders(first["dtype"], shape, ranks_of, ties.pop() if len(ties) == 1 else "")


def _choose(stored: Mapping[str, Holders], num_ranks: int) -> dict[tuple[str, Box], int]:
    """The writer of every box."""
    jobs = [(name, box, ranks) for name, holders in stored.items() for box, ranks in holders.ranks_of.items()]
    jobs.sort(key=lambda job: (len(job[2]), -stored[job[0]].num_bytes(job[1])))  # the least choice first
    loads = [0] * num_ranks
    everywhere = [(0, rank) for rank in range(num_ranks)]  # a heap for boxes that all ranks hold
    chosen = {}
    for name, box, ranks in jobs:
        if len(ranks) == num_ranks > 2:
            while everywhere[0][0] != loads[everywhere[0][1]]:
                _, rank = heapq.heappop(everywhere)
                heapq.heappush(everywhere, (loads[rank], rank))
            owner = everywhere[0][1]
        else:
            owner = min(ranks, key=lambda rank: (loads[rank], rank))
        loads[owner] += stored[name].num_bytes(box)
        chosen[name, box] = owner
    return chosen


def split(pieces: Iterable[T], num_bytes: Callable[[T], int], max_bytes: int) -> list[list[T]]:
    """Consecutive parts of at most `max_bytes` bytes of data, or of one piece."""
    parts: list[list[T]] = []
    free = 0
    for piece in pieces:
        if not parts or num_bytes(piece) > free:
            parts.append([])
            free = max_bytes
        parts[-1].append(piece)
        free -= num_bytes(piece)
    return parts


def file_names(group: str, count: int) -> list[str]:
    """What the files of a group are called: `<group>.safetensors`, or with their numbers as Hugging Face has them."""
    if count == 1:
        return [f"{group}.safetensors"]
    return [f"{group}-{index + 1:05d}-of-{count:05d}.safetensors" for index in range(count)]


def _entries(holders: Mapping[str, Holders], files: Iterable[FilePlan]) -> dict[str, TensorEntry]:
    pieces: dict[str, list[PieceEntry]] = {}
    for file in files:
        for name, box in file.pieces:
            pieces.setdefault(name, []).append(PieceEntry(file.name, box))
    return {
        name: TensorEntry(same_as=holder.same_as)
        if holder.same_as
        else TensorEntry(holder.dtype, holder.shape, tuple(pieces[name]))
        for name, holder in holders.items()
    }
