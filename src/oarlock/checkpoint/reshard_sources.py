"""Who holds what in memory: the tensors of all ranks as cells, each of which its holders have as a whole.

A cell is a piece of a stored tensor like those that lie in files, so the plan of a load also plans what is sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from oarlock.checkpoint.boxes import Box, explain_cover, find_overlap, subtract
from oarlock.checkpoint.distribution import Table, describe_shards
from oarlock.checkpoint.dtypes import dtype_of
from oarlock.checkpoint.shards import Shard, find_ties
from oarlock.checkpoint.stored import StoredPiece, StoredTensor


@dataclass(eq=False)
class Cell:
    """A box of a tensor that all of `ranks` hold, and no other rank holds any of; in the place of a file.

    Attributes:
        path: whom to name in messages.
        value: of a tensor without dims, as it was when the plan was made.
    """

    path: Path
    name: str
    box: Box
    ranks: tuple[int, ...]
    value: Tensor | None = None

    def check(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """Memory is what its holders said."""

    def tensor(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """The value of a tensor without dims."""
        assert self.value is not None
        return self.value

    def blocks_of(self, name: str, dtype: torch.dtype, shape: tuple[int, ...], box: Box) -> np.ndarray:
        """Memory has no digests."""
        return np.empty(0, dtype=np.int64)

    def check_blocks(self, blocks: np.ndarray) -> None:
        """Memory has no digests."""


def describe_sources(shards: Mapping[str, Shard], *, values: bool = False) -> Table:
    """This rank's table of what it holds; with `values` also what tensors without dims contain (JSON)."""
    table = describe_shards(shards, find_ties(shards))
    for name, shard in shards.items():
        if values and not shard.shape:
            for _, view in shard.views():
                data = view.cpu().reshape(1).view(torch.uint8)
                table[name]["value"] = data.tolist()
    return table


def gather_cells(tables: Sequence[Table], what: str) -> dict[str, StoredTensor]:
    """All tensors by name; names that are tied on every rank that holds them are one object.

    Raises:
        ValueError: ranks differ about a tensor's shape or dtype, or an element of it is on no rank.
    """
    names = dict.fromkeys(name for table in tables for name in table)
    found: dict[str, StoredTensor] = {}
    for name in names:
        told = agreed(what, name, tables)
        first = next(iter(told.values()))
        same_as = {entry.get("same_as", "") for entry in told.values() if entry["boxes"]}
        if len(same_as) == 1 and (earlier := same_as.pop()):
            found[name] = found[earlier]
            continue
        shape, dtype = tuple(first["shape"]), dtype_of(first["dtype"])
        held = [(Box(tuple(o), tuple(s)), rank) for rank, entry in told.items() for o, s in entry["boxes"]]
        cells = refine([box for box, _ in held])
        if problem := explain_cover(shape, [box for box, _ in cells]):
            raise ValueError(f"the ranks do not hold all of the {what} tensor {name!r}: {problem}")
        data = next((entry["value"] for entry in told.values() if entry.get("value")), None)
        value = None if data is None else torch.tensor(data, dtype=torch.uint8, device="cpu").view(dtype).reshape(())
        pieces = []
        for box, indices in cells:
            ranks = tuple(sorted({held[i][1] for i in indices}))
            pieces.append(StoredPiece(Cell(_label(ranks[0]), name, box, ranks, value), name, box))
        found[name] = StoredTensor(dtype, shape, tuple(pieces))
    return found


def holder_sets(stored: Mapping[str, StoredTensor]) -> list[tuple[int, ...]]:
    """The ranks of every cell, each set once."""
    return list(dict.fromkeys(p.file.ranks for t in stored.values() for p in t.pieces if isinstance(p.file, Cell)))


@cache
def _label(rank: int) -> Path:
    return Path(f"rank-{rank}")


def agreed(what: str, name: str, tables: Sequence[Table]) -> dict[int, dict]:
    """What each rank that has a tensor says about it.

    Raises:
        ValueError: they differ about its shape or dtype.
    """
    told = {rank: table[name] for rank, table in enumerate(tables) if name in table}
    first_rank, first = next(iter(told.items()))
    for rank, entry in told.items():
        for key in ("dtype", "shape"):
            if list(entry[key]) != list(first[key]):
                raise ValueError(
                    f"the {what} tensor {name!r} has {key} {entry[key]} on rank {rank} and {first[key]} on rank "
                    f"{first_rank}; pass each rank's part of one global tensor (a DTensor or a Shard)"
                )
    return told


def refine(boxes: Sequence[Box]) -> list[tuple[Box, list[int]]]:
    """The elements of all boxes in disjoint boxes, each with the indices of the given ones that contain it."""
    distinct: dict[Box, list[int]] = {}
    for index, box in enumerate(boxes):
        if box.volume:
            distinct.setdefault(box, []).append(index)
    if find_overlap(list(distinct)) is None:
        return list(distinct.items())
    cells: list[tuple[Box, list[int]]] = []
    for box, owners in distinct.items():
        rest, refined = [box], []
        for cell, holders in cells:
            common = cell.intersect(box)
            if common is None:
                refined.append((cell, holders))
                continue
            refined.append((common, [*holders, *owners]))
            refined += [(part, holders) for part in subtract(cell, box)]
            rest = [part for piece in rest for part in subtract(piece, cell)]
        cells = refined + [(part, owners) for part in rest]
    return cells
