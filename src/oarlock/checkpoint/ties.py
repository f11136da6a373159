"""Destinations that share memory: one of them is filled, and what the others would have been must be the same."""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from oarlock.checkpoint.boxes import Box
from oarlock.checkpoint.manifest import CheckpointError
from oarlock.checkpoint.shards import Shard, find_ties
from oarlock.checkpoint.transfers import Read, Transfer

_STEP_BYTES = 4 << 20  # compared at once


class Filling(NamedTuple):
    """How a destination is filled."""

    shard: Shard
    fill: Callable[[Box, torch.Tensor], Iterable[Transfer]]
    """(box of the global tensor, memory for it) -> transfers."""
    identity: Hashable
    """Equal for destinations that consist of the same elements of the same stored tensors."""


@dataclass(frozen=True)
class Tie:
    """Two destinations with the same memory, to be filled from different places."""

    first: str
    second: str
    fillings: tuple[Filling, Filling]

    def reads(self) -> Iterator[Read]:
        """What is read for the second only."""
        shard, fill, _ = self.fillings[1]
        for box, view in shard.views():
            for transfer in fill(box, view):
                yield from transfer.reads

    def check(self) -> None:
        """Raise CheckpointError unless both would be filled with the same bits."""
        shard = self.fillings[0].shard
        for box, _ in shard.views():
            for part in _rows(box, shard.dtype.itemsize):
                values = []
                for filling in self.fillings:
                    value = torch.empty(part.size, dtype=shard.dtype, device="cpu")
                    for transfer in filling.fill(part, value):
                        transfer.run()
                    values.append(value.reshape(-1).view(torch.uint8))
                if not torch.equal(*values):
                    raise CheckpointError(
                        f"{self.first} and {self.second} share their memory, but the checkpoint has different values "
                        f"for them (in {part}); untie them, or choose one: prefer=({self.first!r},)"
                    )


def resolve(fillings: Mapping[str, Filling], prefer: Collection[str]) -> tuple[list[Transfer], list[Tie]]:
    """The transfers that fill every memory once, what is preferred last, and the ties whose values must be compared."""
    ties = find_ties({name: filling.shard for name, filling in fillings.items()})
    members: dict[str, list[str]] = {}
    for name in fillings:
        members.setdefault(ties.get(name, name), []).append(name)
    transfers: list[Transfer] = []
    doubts: list[Tie] = []
    for names in sorted(members.values(), key=lambda names: any(name in prefer for name in names)):
        chosen = [name for name in names if name in prefer]
        winner = fillings[(chosen or names)[0]]
        for box, view in winner.shard.views():
            transfers += winner.fill(box, view)
        if not chosen:
            doubts += [
                Tie(names[0], name, (winner, fillings[name]))
                for name in names[1:]
                if fillings[name].identity != winner.identity
            ]
    return transfers, doubts


def _rows(box: Box, itemsize: int) -> Iterator[Box]:
    row = math.prod(box.size[1:]) * itemsize
    if not box.size or row * box.size[0] <= _STEP_BYTES:
        yield box
        return
    step = max(1, _STEP_BYTES // row)
    for start in range(0, box.size[0], step):
        size = (min(step, box.size[0] - start), *box.size[1:])
        yield Box((box.offset[0] + start, *box.offset[1:]), size)
