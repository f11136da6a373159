"""Who writes what: every element of every tensor exactly once, in files of bounded size, balanced by bytes.

Each rank tells which boxes of which tensors it holds; from these tables all ranks derive the same distribution, so
nothing else is exchanged before the data is written.
"""

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oarlock.checkpoint.boxes import Box, explain_cover
from oarlock.checkpoint.manifest import PieceEntry, TensorEntry
from oarlock.checkpoint.shards import Shard
from oarlock.checkpoint.tensor_file import dtype_name, dtype_of
from oarlock.digest import Digest64
from oarlock.ranks import Ranks

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
        ValueError: ranks differ about a tensor's shape or dtype, or their boxes do not make up the tensor.
    """
    holders = {name: _merge(group, name, tables) for name in dict.fromkeys(n for table in tables for n in table)}
    stored = {name: holder for name, holder in holders.items() if not holder.same_as}
    owned: list[list[tuple[str, Box]]] = [[] for _ in tables]
    place = {name: index for index, name in enumerate(stored)}
    for (name, box), rank in _choose(stored, len(tables)).items():
        owned[rank].append((name, box))
    parts = []
    for rank, pieces in enumerate(owned):
        pieces.sort(key=lambda piece: (place[piece[0]], piece[1].offset))
        parts += [(rank, part) for part in _split(pieces, stored, max_bytes)]
    parts = parts or [(0, [])]
    files = []
    for index, (rank, part) in enumerate(parts):
        suffix = f"-{index + 1:05d}-of-{len(parts):05d}" if len(parts) > 1 else ""
        files.append(FilePlan(f"{group}{suffix}.safetensors", rank, tuple(part)))
    num_bytes = sum(holder.num_bytes(Box.whole(holder.shape)) for holder in stored.values())
    return GroupPlan(group, tuple(files), _entries(holders, files), num_bytes)


@dataclass(frozen=True)
class _Holders:
    dtype: str
    shape: tuple[int, ...]
    ranks_of: dict[Box, list[int]]
    same_as: str

    def num_bytes(self, box: Box) -> int:
        return box.volume * dtype_of(self.dtype).itemsize


def _merge(group: str, name: str, tables: Sequence[Table]) -> _Holders:
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
    return _Holders(first["dtype"], shape, ranks_of, ties.pop() if len(ties) == 1 else "")


def _choose(stored: Mapping[str, _Holders], num_ranks: int) -> dict[tuple[str, Box], int]:
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


def _split(
    pieces: Iterable[tuple[str, Box]], stored: Mapping[str, _Holders], max_bytes: int
) -> list[list[tuple[str, Box]]]:
    """Consecutive parts of at most `max_bytes` bytes of data, or of one piece."""
    parts: list[list[tuple[str, Box]]] = []
    free = 0
    for name, box in pieces:
        num_bytes = stored[name].num_bytes(box)
        if not parts or num_bytes > free:
            parts.append([])
            free = max_bytes
        parts[-1].append((name, box))
        free -= num_bytes
    return parts


def _entries(holders: Mapping[str, _Holders], files: Iterable[FilePlan]) -> dict[str, TensorEntry]:
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
