"""Blocks: the affine pieces that a tensor is made of.

A block states where a lattice of destination elements comes from:

    dest[d + Σ_a i_a δ_a e(q_a)]  =  source[s + Σ_a i_a σ_a e(p_a)]      for all 0 <= i_a < n_a

Legend
    a          an atom: one of the block's loop indices i_a
    n_a        extent of the atom, at least 2
    p_a, σ_a   the one source axis along which the atom moves, and its step there (0 only in constants)
    q_a, δ_a   the one destination axis along which the atom moves, and its step there, at least 1
    s, d       source_base and dest_base: the coordinates of the element with all i_a = 0
    e(k)       the unit vector of axis k

Both sides are strided, so one `copy_` between two `as_strided` views executes a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from oarlock.checkpoint.aoa.values import Cast, ValueOp

if TYPE_CHECKING:
    from oarlock.checkpoint.aoa.quantized import Computed

_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Atom(NamedTuple):
    """One loop index of a block: n, (p, σ), (q, δ) of the legend."""

    extent: int
    source_dim: int
    source_step: int
    dest_dim: int
    dest_step: int

    def swapped(self) -> Atom:
        """The same index with the two sides exchanged."""
        return Atom(self.extent, self.dest_dim, self.dest_step, self.source_dim, self.source_step)

    def every(self, step: int, extent: int) -> Atom:
        """The index i' of i = i0 + step * i', of which there are `extent`."""
        return Atom(extent, self.source_dim, self.source_step * step, self.dest_dim, self.dest_step * step)


class Constant(NamedTuple):
    """The source of padding: one value, read over and over with step 0."""

    value: float
    dtype: torch.dtype

    def tensor(self) -> Tensor:
        """A tensor without axes. Zeros are made of zero bytes, which every dtype has."""
        if self.value:
            return torch.tensor(self.value, dtype=self.dtype, device="cpu")
        return torch.zeros(self.dtype.itemsize, dtype=torch.uint8, device="cpu").view(self.dtype)[0]


@dataclass(frozen=True, slots=True)
class Block:
    """One affine piece of a tensor; see the module's legend.

    Args:
        source: name of the source tensor, or a Constant, or a Computed tensor (a dequantised one).
        atoms: in order of (q, -δ).
        source_base: s, one coordinate per source axis.
        dest_base: d, one coordinate per destination axis.
        ops: applied to the elements in this order.
    """

    source: str | Constant | Computed
    atoms: tuple[Atom, ...]
    source_base: tuple[int, ...]
    dest_base: tuple[int, ...]
    ops: tuple[ValueOp, ...] = ()

    @property
    def extents(self) -> tuple[int, ...]:
        """n, one per atom."""
        return tuple(atom.extent for atom in self.atoms)

    @property
    def volume(self) -> int:
        """Number of elements: Π n_a."""
        return math.prod(atom.extent for atom in self.atoms)

    @property
    def source_steps(self) -> tuple[tuple[int, ...], ...]:
        """Steps per source axis, and in each per atom: σ_a on axis p_a, else 0."""
        dims = range(len(self.source_base))
        return tuple(tuple(a.source_step * (a.source_dim == k) for a in self.atoms) for k in dims)

    @property
    def dest_steps(self) -> tuple[tuple[int, ...], ...]:
        """Steps per destination axis, and in each per atom: δ_a on axis q_a, else 0."""
        dims = range(len(self.dest_base))
        return tuple(tuple(a.dest_step * (a.dest_dim == k) for a in self.atoms) for k in dims)

    def source_box(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Offset and size of the smallest box of the source that holds all elements."""
        size = [1] * len(self.source_base)
        for atom in self.atoms:
            size[atom.source_dim] += (atom.extent - 1) * atom.source_step
        return self.source_base, tuple(size)

    def dest_box(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Offset and size of the smallest box of the destination that holds all elements."""
        size = [1] * len(self.dest_base)
        for atom in self.atoms:
            size[atom.dest_dim] += (atom.extent - 1) * atom.dest_step
        return self.dest_base, tuple(size)

    def at(self, atom: Atom, index: int) -> Block:
        """The elements with i_a = index: the atom disappears into the bases."""
        source_base, dest_base = list(self.source_base), list(self.dest_base)
        source_base[atom.source_dim] += index * atom.source_step
        dest_base[atom.dest_dim] += index * atom.dest_step
        atoms = tuple(other for other in self.atoms if other is not atom)
        return Block(self.source, atoms, tuple(source_base), tuple(dest_base), self.ops)

    def with_atom(self, atom: Atom) -> Block:
        """The elements repeated along one more index."""
        if atom.extent == 1:
            return self
        atoms = tuple(sorted((*self.atoms, atom), key=atom_order))
        return Block(self.source, atoms, self.source_base, self.dest_base, self.ops)

    def part(self, atom: Atom, first: int, count: int) -> Block:
        """The elements with first <= i_a < first + count."""
        return self.at(atom, first).with_atom(atom.every(1, count))

    def onto(self, atoms: Iterable[Atom], dest_base: Iterable[int]) -> Block:
        """The same source elements elsewhere in the destination."""
        ordered = tuple(sorted(atoms, key=atom_order))
        return Block(self.source, ordered, self.source_base, tuple(dest_base), self.ops)

    def with_ops(self, ops: tuple[ValueOp, ...]) -> Block:
        """The same elements with other value operations."""
        return Block(self.source, self.atoms, self.source_base, self.dest_base, ops)

    def swapped(self, source: str) -> Block:
        """The block read backwards: `source` names what was the destination, and operations are undone."""
        atoms = tuple(sorted([atom.swapped() for atom in self.atoms], key=atom_order))
        ops = tuple([op.inverse() for op in reversed(self.ops)])
        return Block(source, atoms, self.dest_base, self.source_base, ops)

    def copy(self, source: Tensor, destination: Tensor, *, origin: Sequence[int] | None = None) -> None:
        """Write this block's elements into `destination`, reading them from `source`, without a temporary copy.

        Elements that no operation touches keep their bits, whatever the dtype.

        Args:
            source: the source tensor, any strides; or the box of it that starts at `origin`. For a Computed source
                what its `compute` returned. Ignored by a Constant.
            destination: the tensor (or the queried box of it) to write into, any strides.
            origin: coordinates in the source of `source`'s first element, default 0.

        Raises:
            ValueError: the destination has not the dtype that the block produces.
        """
        dest = self._view(destination, self.dest_base, [(a.dest_dim, a.dest_step) for a in self.atoms])
        if isinstance(self.source, Constant):
            value = self.source.tensor()
            for op in self.ops:
                value = op(value)
            copy_exactly(value.to(dest.dtype), dest)
            return
        base = self.source_base
        if origin is not None:
            base = tuple(s - o for s, o in zip(base, origin, strict=True))
        values = self._view(source, base, [(a.source_dim, a.source_step) for a in self.atoms])
        if len(self.ops) == 1 and isinstance(self.ops[0], Cast) and self.ops[0].dtype == dest.dtype:
            dest.copy_(values)
            return
        for op in self.ops:
            values = op(values)
        if values.dtype != dest.dtype:
            raise ValueError(f"the block from {self.source!r} holds {values.dtype}, the destination {dest.dtype}")
        copy_exactly(values, dest)

    def _view(self, tensor: Tensor, base: Sequence[int], moves: list[tuple[int, int]]) -> Tensor:
        tensor = tensor.detach()
        strides = tensor.stride()
        offset = tensor.storage_offset() + sum(b * stride for b, stride in zip(base, strides, strict=True))
        return tensor.as_strided(self.extents, [step * strides[dim] for dim, step in moves], offset)


def copy_exactly(source: Tensor, destination: Tensor) -> None:
    """Copy elements of one dtype with their bits, also of dtypes that torch can only hold (int4, bits8)."""
    if destination.is_conj() or destination.is_neg():  # the memory holds other bits than the tensor shows
        destination.copy_(source)
        return
    bits = _INTEGER_OF_SIZE.get(destination.dtype.itemsize, destination.dtype)
    destination.view(bits).copy_(source.resolve_conj().resolve_neg().view(bits))


def atom_order(atom: Atom) -> tuple[int, int]:
    """Sort key of a block's atoms: as their elements lie in a contiguous destination."""
    return atom.dest_dim, -atom.dest_step


def fused(atoms: Iterable[Atom]) -> tuple[Atom, ...]:
    """Fewer atoms for the same elements: i_a n_b + i_b is one index where both sides step alike. Sorts the atoms."""
    result: list[Atom] = []
    for inner in sorted(atoms, key=atom_order):
        if result:
            outer = result[-1]
            if inner.every(inner.extent, outer.extent) == outer:
                result[-1] = inner.every(1, outer.extent * inner.extent)
                continue
        result.append(inner)
    return tuple(result)
