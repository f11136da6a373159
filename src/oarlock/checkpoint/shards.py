"""Local tensors as pieces of a global one: whole and distributed tensors, flat ZeRO slices, fused projections.

A shard is one local tensor and a list of pieces; a piece says which box of the local tensor holds which box of the
global one. So the global layout never depends on how a tensor is spread: two ranks of tensor parallelism that each hold
``[gate rows, up rows]`` of a fused projection describe the plain ``[gate, up]``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from oarlock.checkpoint.boxes import Box, explain_cover, find_overlap, flat_boxes

Run = tuple[int, int]
"""Consecutive indices [start, stop) along a dim."""


@dataclass(frozen=True)
class Piece:
    """The elements `place` of the local tensor hold the elements `box` of the global one, in row-major order."""

    box: Box
    place: Box


@dataclass(frozen=True)
class Shard:
    """A process's part of a global tensor; build it with one of the class methods.

    Attributes:
        tensor: the local memory, any dtype, strides and device.
        shape: of the global tensor.
        pieces: disjoint in the local tensor and in the global one; they may leave out local elements (padding).
    """

    tensor: Tensor
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @classmethod
    def whole(cls, tensor: Tensor) -> Shard:
        """A tensor that this process holds wholly."""
        box = Box.whole(tensor.shape)
        return cls(tensor, tuple(tensor.shape), (Piece(box, box),))

    @classmethod
    def box(cls, tensor: Tensor, shape: Sequence[int], offset: Sequence[int]) -> Shard:
        """A tensor that is the box at `offset` of a global tensor of this shape.

        Raises:
            ValueError: the box is not inside of the shape.
        """
        return _checked(tensor, shape, [Piece(Box(tuple(offset), tuple(tensor.shape)), Box.whole(tensor.shape))])

    @classmethod
    def from_dtensor(cls, dtensor: Any) -> Shard:
        """The local part of a DTensor: replicated and sharded placements, also uneven, strided (FSDP2 over tensor
        parallelism), and several mesh dims on one tensor dim. A process outside of the mesh holds nothing.

        Raises:
            ValueError: a partial placement, whose local values are only summands.
        """
        mesh, local = dtensor.device_mesh, dtensor.to_local()
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            return cls(local, tuple(dtensor.shape), ())
        runs: list[list[Run]] = [[(0, size)] for size in dtensor.shape]
        for axis in _in_order(dtensor):
            placement = dtensor.placements[axis]
            if placement.is_partial():
                raise ValueError(
                    f"a DTensor of shape {list(dtensor.shape)} with placements {dtensor.placements} holds partial "
                    "sums; redistribute it to Shard or Replicate first"
                )
            dim = getattr(placement, "dim", None)
            if dim is not None:
                strips = getattr(placement, "split_factor", 1)
                runs[dim] = _take_chunk(runs[dim], mesh.size(axis), coordinate[axis], strips)
        return _checked(local, dtensor.shape, _grid(runs))

    @classmethod
    def flat(cls, tensor: Tensor, shape: Sequence[int], start: int, *, box: Box | None = None) -> Shard:
        """A 1-D tensor that holds consecutive elements of a tensor in row-major order, as ZeRO optimizers keep them.

        Args:
            tensor: [n]; elements beyond the end of the box are padding and belong to nothing, as may be all of them.
            shape: of the global tensor.
            start: the first element's place in the row-major order of `box`.
            box: the part of the global tensor that was flattened (a tensor-parallel shard); None = all of it.

        Raises:
            ValueError: not 1-D, or `start` is below 0.
        """
        box = Box.whole(shape) if box is None else box
        if tensor.dim() != 1:
            raise ValueError(f"a flat slice is a 1-D tensor, got shape {list(tensor.shape)}")
        if start < 0:
            raise ValueError(f"a flat slice starts at 0 or above, got {start}")
        pieces, place = [], 0
        stop = min(start + tensor.numel(), box.volume)
        for part in flat_boxes(box.size, start, stop) if start < stop else ():
            offset = tuple(a + b for a, b in zip(part.offset, box.offset, strict=True))
            pieces.append(Piece(Box(offset, part.size), Box((place,), (part.volume,))))
            place += part.volume
        return _checked(tensor, shape, pieces, may_pad=True)

    @classmethod
    def blocks(cls, tensor: Tensor, shape: Sequence[int], dim: int, runs: Sequence[Run]) -> Shard:
        """A tensor whose indices along `dim` are these runs [start, stop) of the global tensor's, one after the other.

        Raises:
            ValueError: the runs overlap, or do not have the local size.
        """
        dim = dim % len(shape)
        all_runs: list[list[Run]] = [[(0, size)] for size in shape]
        all_runs[dim] = list(runs)
        return _checked(tensor, shape, _grid(all_runs))

    @classmethod
    def fused(cls, tensor: Tensor, sizes: Sequence[int], *, rank: int, num_ranks: int, dim: int = 0) -> Shard:
        """A tensor-parallel rank's part of several projections that are stored as one, each cut evenly.

        The global tensor is their concatenation along `dim`, for any number of ranks; the local one holds chunk `rank`
        of each: ``[gate_r, up_r]``, or ``[q_r, k_r, v_r]`` of grouped-query attention.

        Args:
            tensor: the local part.
            sizes: the projections' global sizes along `dim`, such as [ffn, ffn] or [Hq * D, Hk * D, Hk * D].

        Raises:
            ValueError: a size is not a multiple of `num_ranks`, or the local size does not fit.
        """
        dim = dim % tensor.dim()
        uneven = [size for size in sizes if size % num_ranks]
        if uneven:
            raise ValueError(
                f"a projection of size {uneven[0]} along dim {dim} cannot be cut evenly over {num_ranks} ranks"
            )
        shape = list(tensor.shape)
        shape[dim] = sum(sizes)
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        chunks = [size // num_ranks for size in sizes]
        runs = [(start + rank * chunk, start + (rank + 1) * chunk) for start, chunk in zip(starts, chunks, strict=True)]
        return cls.blocks(tensor, shape, dim, runs)

    def like(self, tensor: Tensor) -> Shard:
        """The same pieces of another tensor of the same local shape, such as a moment of the optimizer.

        Raises:
            ValueError: another local shape.
        """
        if tensor.shape != self.tensor.shape:
            raise ValueError(f"expected the local shape {list(self.tensor.shape)}, got {list(tensor.shape)}")
        return Shard(tensor, self.shape, self.pieces)

    def views(self) -> Iterator[tuple[Box, Tensor]]:
        """The pieces' boxes of the global tensor, each with a view of the local memory that holds it."""
        tensor = self.tensor.detach()
        for piece in self.pieces:
            yield piece.box, tensor[piece.place.slices].view(piece.box.size)

    @property
    def dtype(self) -> torch.dtype:
        """Of the elements."""
        return self.tensor.dtype


def shard_of(value: Tensor | Shard) -> Shard:
    """A shard as it is; a DTensor's local part; any other tensor as a whole one.

    Raises:
        TypeError: neither a tensor nor a shard.
    """
    if isinstance(value, Shard):
        return value
    if not isinstance(value, Tensor):
        raise TypeError(f"expected a tensor, a DTensor or a Shard, got {type(value).__name__}")
    return Shard.from_dtensor(value) if hasattr(value, "placements") else Shard.whole(value)


def find_ties(shards: Mapping[str, Shard]) -> dict[str, str]:
    """Names whose tensor is, element for element, the memory of an earlier name's: name -> earlier name."""
    first: dict[tuple[Any, ...], str] = {}
    ties = {}
    for name, shard in shards.items():
        tensor = shard.tensor
        if tensor.numel() == 0 or tensor.layout != torch.strided:
            continue
        memory = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        earlier = first.setdefault((*memory, tensor.is_conj(), tensor.is_neg(), shard.shape, shard.pieces), name)
        if earlier != name:
            ties[name] = earlier
    return ties


def _checked(tensor: Tensor, shape: Sequence[int], pieces: Sequence[Piece], *, may_pad: bool = False) -> Shard:
    shape = tuple(shape)
    pieces = tuple(piece for piece in pieces if piece.box.volume)
    whole, local = Box.whole(shape), Box.whole(tensor.shape)
    for piece in pieces:
        if piece.box.intersect(whole) != piece.box:
            raise ValueError(f"{piece.box} is not inside of a tensor of shape {list(shape)}")
        if piece.place.intersect(local) != piece.place:
            raise ValueError(f"{piece.place} is not inside of the local tensor of shape {list(tensor.shape)}")
    if find_overlap([piece.box for piece in pieces]) is not None:
        raise ValueError(f"the local tensor would hold elements twice: {', '.join(str(p.box) for p in pieces[:8])}")
    if not may_pad and (missing := explain_cover(tensor.shape, [piece.place for piece in pieces])):
        raise ValueError(f"the pieces do not make up the local tensor of shape {list(tensor.shape)}: {missing}")
    return Shard(tensor, shape, pieces)


def _in_order(dtensor: Any) -> list[int]:
    """The mesh dims in the order in which they cut the tensor: from left to right, unless it says otherwise."""
    axes = list(range(len(dtensor.placements)))
    for entry in getattr(dtensor._spec, "shard_order", None) or ():  # not before torch 2.10; a strided shard has none
        places = sorted(axes.index(axis) for axis in entry.mesh_dims)
        for place, axis in zip(places, entry.mesh_dims, strict=True):
            axes[place] = axis
    return axes


def _grid(runs: Sequence[Sequence[Run]]) -> list[Piece]:
    """The pieces of a tensor whose local indices along every dim are the given global ones."""
    placed = []
    for of_dim in runs:
        sizes = [stop - start for start, stop in of_dim]
        placed.append([(run[0], sum(sizes[:i]), sizes[i]) for i, run in enumerate(of_dim)])
    pieces = []
    for cell in product(*placed):
        size = tuple(s for _, _, s in cell)
        pieces.append(Piece(Box(tuple(g for g, _, _ in cell), size), Box(tuple(p for _, p, _ in cell), size)))
    return pieces


def _take_chunk(runs: Sequence[Run], num_chunks: int, index: int, strips: int) -> list[Run]:
    """Chunk `index` of `num_chunks` of each of `strips` equal parts of the indices in `runs`."""
    total = sum(stop - start for start, stop in runs)
    taken: list[Run] = []
    for strip_start, strip_stop in _chunks(total, strips):
        chunks = _chunks(strip_stop - strip_start, num_chunks)
        start, stop = chunks[index]
        taken += _positions(runs, strip_start + start, strip_start + stop)
    return taken


def _chunks(total: int, num: int) -> list[Run]:
    """As torch.chunk cuts: all of ceil(total / num), the last ones shorter or empty."""
    step = math.ceil(total / num)
    return [(min(i * step, total), min((i + 1) * step, total)) for i in range(num)]


def _positions(runs: Sequence[Run], start: int, stop: int) -> list[Run]:
    """The indices at the places [start, stop) of the concatenated runs, as runs."""
    taken: list[Run] = []
    place = 0
    for run_start, run_stop in runs:
        low, high = max(start - place, 0), min(stop - place, run_stop - run_start)
        if low < high:
            if taken and taken[-1][1] == run_start + low:
                taken[-1] = (taken[-1][0], run_start + high)
            else:
                taken.append((run_start + low, run_start + high))
        place += run_stop - run_start
    return taken
