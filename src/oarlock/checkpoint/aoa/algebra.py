"""The algebra of relations: layout operations that turn blocks into blocks and touch no element.

A relation says of each element of a tensor which source element it is. Each operation maps destination coordinates by
an affine rule, or by one that is affine on parts of a block:

    concat      d_k + offset of the part
    permute     axes q renumbered
    slice       (d_k - start) / step      on the elements where that is an integer in range   (cutting.restrict)
    flatten     d_k C + d_{k+1}           C the size of axis k+1
    unflatten   d_k // C, d_k % C         on parts that stay within a row                     (cutting.at_row_ends)
    pad         a block of constants beside the others

so the algebra is closed: every composition is again a list of blocks. `n, p, s, q, d` are the fields of an atom in the
order of the legend in blocks.py (n, p, σ, q, δ). The blocks of a relation are disjoint and cover
the tensor, Σ volume = number of elements; the operations keep that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from oarlock.checkpoint.aoa.blocks import Atom, Block, Constant, fused
from oarlock.checkpoint.aoa.cutting import at_row_ends, restrict
from oarlock.checkpoint.aoa.merging import merge
from oarlock.checkpoint.aoa.quantized import Computed
from oarlock.checkpoint.aoa.values import Add, Cast, Divide, Multiply, Scope, ValueOp, is_possible
from oarlock.checkpoint.dtypes import dtype_name


@dataclass(frozen=True, slots=True)
class Relation:
    """A tensor of a program: its shape, its dtype, and the blocks that it is made of."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    blocks: tuple[Block, ...]

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    def dim(self, axis: int) -> int:
        """An axis of the language, which may be negative, as a non-negative one; ValueError if there is none."""
        if not -len(self.shape) <= axis < len(self.shape):
            raise ValueError(f"axis {axis} does not exist in a tensor of shape {self.shape}")
        return axis % len(self.shape)

    def permute(self, order: Sequence[int]) -> Relation:
        """Axis k of the result is axis order[k]; an empty order reverses all axes."""
        order = [self.dim(k) for k in order] or list(reversed(range(len(self.shape))))
        if sorted(order) != list(range(len(self.shape))):
            raise ValueError(f"{order} is no permutation of the {len(self.shape)} axes of shape {self.shape}")
        place = [0] * len(order)
        for new, old in enumerate(order):
            place[old] = new
        blocks = [
            b.onto([Atom(n, p, s, place[q], d) for n, p, s, q, d in b.atoms], [b.dest_base[k] for k in order])
            for b in self.blocks
        ]
        return Relation(tuple([self.shape[k] for k in order]), self.dtype, tuple(blocks))

    def slice(self, dim: int, start: int, stop: int, step: int = 1) -> Relation:
        """The elements start, start + step, ... below `stop` along one axis; 0 <= start <= stop <= size, step >= 1."""
        if (start, stop, step) == (0, self.shape[dim], 1):
            return self
        blocks = []
        for b in (part for block in self.blocks for part in restrict(block, dim, start, stop, step)):
            atoms = [Atom(n, p, s, q, d // step if q == dim else d) for n, p, s, q, d in b.atoms]
            blocks.append(b.onto(atoms, _put(b.dest_base, dim, (b.dest_base[dim] - start) // step)))
        return Relation(_put(self.shape, dim, len(range(start, stop, step))), self.dtype, tuple(blocks))

    def split(self, dim: int, sizes: Sequence[int]) -> list[Relation]:
        """Consecutive parts of the given sizes along one axis."""
        if sum(sizes) != self.shape[dim]:
            raise ValueError(
                f"sizes {list(sizes)} add up to {sum(sizes)}, axis {dim} of {self.shape} has {self.shape[dim]}"
            )
        ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
        return [self.slice(dim, end - size, end) for end, size in zip(ends, sizes, strict=True)]

    def flatten(self, dim: int) -> Relation:
        """Axes dim and dim + 1 as one, in row-major order."""
        width = self.shape[dim + 1]
        shape = (*self.shape[:dim], self.shape[dim] * width, *self.shape[dim + 2 :])
        blocks = []
        for b in self.blocks:
            atoms = [Atom(n, p, s, q - (q > dim), d * width if q == dim else d) for n, p, s, q, d in b.atoms]
            row, column = b.dest_base[dim : dim + 2]
            base = (*b.dest_base[:dim], row * width + column, *b.dest_base[dim + 2 :])
            blocks.append(b.onto(fused(atoms), base))
        return Relation(shape, self.dtype, merge(blocks))

    def unflatten(self, dim: int, num_rows: int, width: int) -> Relation:
        """Axis dim, of size num_rows * width, as two axes."""
        if num_rows * width != self.shape[dim]:
            raise ValueError(f"axis {dim} of {self.shape} cannot be {num_rows} x {width}")
        shape = (*self.shape[:dim], num_rows, width, *self.shape[dim + 1 :])
        blocks = []
        for b in (part for block in self.blocks for part in at_row_ends(block, dim, width)):
            atoms = [
                Atom(n, p, s, q, d // width) if q == dim and d % width == 0 else Atom(n, p, s, q + (q >= dim), d)
                for n, p, s, q, d in b.atoms
            ]
            base = (*b.dest_base[:dim], *divmod(b.dest_base[dim], width), *b.dest_base[dim + 1 :])
            blocks.append(b.onto(atoms, base))
        return Relation(shape, self.dtype, merge(blocks))

    def unsqueeze(self, dim: int) -> Relation:
        """One more axis, of size 1, before axis `dim`."""
        blocks = []
        for b in self.blocks:
            atoms = [Atom(n, p, s, q + (q >= dim), d) for n, p, s, q, d in b.atoms]
            blocks.append(b.onto(atoms, (*b.dest_base[:dim], 0, *b.dest_base[dim:])))
        return Relation((*self.shape[:dim], 1, *self.shape[dim:]), self.dtype, tuple(blocks))

    def squeeze(self, dim: int) -> Relation:
        """Without axis `dim`, which has size 1."""
        blocks = []
        for b in self.blocks:
            atoms = [Atom(n, p, s, q - (q > dim), d) for n, p, s, q, d in b.atoms]
            blocks.append(b.onto(atoms, (*b.dest_base[:dim], *b.dest_base[dim + 1 :])))
        return Relation((*self.shape[:dim], *self.shape[dim + 1 :]), self.dtype, tuple(blocks))

    def reshape(self, shape: Sequence[int]) -> Relation:
        """The elements in row-major order in another shape, one size of which may be -1."""
        target = _complete(tuple(shape), self)
        if self.num_elements == 0:
            return Relation(target, self.dtype, ())
        result, dim = self, 0
        for old, new in _aligned(self.shape, target):
            if len(old) == len(new) == 1:
                dim += 1
                continue
            result = result if old else result.unsqueeze(dim)
            for _ in old[1:]:
                result = result.flatten(dim)
            for k in range(1, len(new)):
                result = result.unflatten(dim + k - 1, new[k - 1], math.prod(new[k:]))
            result = result if new else result.squeeze(dim)
            dim += len(new)
        return result

    def pad(self, dim: int, size: int) -> Relation:
        """Grown to `size` along one axis, with zeros at the end."""
        old = self.shape[dim]
        if size < old:
            raise ValueError(f"axis {dim} of {self.shape} is longer than pad={size}; pad is the size to grow to")
        if size == old:
            return self
        return concat([self, constant(0.0, _put(self.shape, dim, size - old), self.dtype)], dim)

    def cast(self, dtype: torch.dtype, only: Scope = "param") -> Relation:
        """In another dtype."""
        return self if dtype == self.dtype else self._apply(Cast(self.dtype, dtype, only), dtype)

    def arithmetic(self, op: Add | Multiply | Divide) -> Relation:
        """With an operation on every value, in the tensor's own dtype."""
        if not (self.dtype.is_floating_point or self.dtype.is_complex or isinstance(op.value, int)):
            raise ValueError(f"{op.value} would be rounded in {dtype_name(self.dtype)}; cast to a floating dtype first")
        return self._apply(op, self.dtype)

    def query(self, offset: Sequence[int], size: Sequence[int]) -> tuple[Block, ...]:
        """The blocks that fill a box; their destination coordinates count from the box's corner."""
        if not len(offset) == len(size) == len(self.shape):
            raise ValueError(f"box {tuple(offset)} + {tuple(size)} does not have the axes of shape {self.shape}")
        result = self
        for dim, (o, s, n) in enumerate(zip(offset, size, self.shape, strict=True)):
            if min(o, s) < 0 or o + s > n:
                raise ValueError(f"box {tuple(offset)} + {tuple(size)} is not inside shape {self.shape}")
            result = result.slice(dim, o, o + s)
        return result.blocks if result is self else merge(result.blocks)

    def _apply(self, op: ValueOp, dtype: torch.dtype) -> Relation:
        if not is_possible(op, self.dtype):
            what = f"cast to {dtype_name(dtype)}" if isinstance(op, Cast) else "arithmetic; cast first"
            raise ValueError(f"torch has for {dtype_name(self.dtype)} no {what}")
        return Relation(self.shape, dtype, tuple([block.with_ops((*block.ops, op)) for block in self.blocks]))


def whole(source: str | Computed, shape: tuple[int, ...], dtype: torch.dtype) -> Relation:
    """A source tensor as it is: one block."""
    if 0 in shape:
        return Relation(shape, dtype, ())
    zeros, atoms = _identity(shape)
    return Relation(shape, dtype, (Block(source, atoms, zeros, zeros),))


def constant(value: float, shape: tuple[int, ...], dtype: torch.dtype) -> Relation:
    """A tensor that holds one value everywhere."""
    if 0 in shape:
        return Relation(shape, dtype, ())
    atoms = tuple([Atom(n, 0, 0, k, 1) for k, n in enumerate(shape) if n > 1])
    return Relation(shape, dtype, (Block(Constant(value, dtype), atoms, (0,), (0,) * len(shape)),))


def concat(parts: Sequence[Relation], dim: int) -> Relation:
    """Tensors joined along an existing axis; all other sizes and the dtypes must agree."""
    first = parts[0]
    for part in parts[1:]:
        if len(part.shape) != len(first.shape) or any(
            n != m for k, (n, m) in enumerate(zip(part.shape, first.shape, strict=True)) if k != dim
        ):
            raise ValueError(f"shapes {first.shape} and {part.shape} cannot be joined along axis {dim}")
        if part.dtype != first.dtype:
            raise ValueError(
                f"{dtype_name(first.dtype)} and {dtype_name(part.dtype)} cannot be joined; cast one of them first"
            )
    blocks, offset = [], 0
    for part in parts:
        blocks += [b.onto(b.atoms, _put(b.dest_base, dim, b.dest_base[dim] + offset)) for b in part.blocks]
        offset += part.shape[dim]
    return Relation(_put(first.shape, dim, offset), first.dtype, merge(blocks))


def stack(parts: Sequence[Relation], dim: int) -> Relation:
    """Tensors of one shape joined along a new axis."""
    return concat([part.unsqueeze(dim) for part in parts], dim)


@lru_cache(maxsize=4096)
def _identity(shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[Atom, ...]]:
    return (0,) * len(shape), tuple([Atom(n, k, 1, k, 1) for k, n in enumerate(shape) if n > 1])


def _put(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _complete(shape: tuple[int, ...], relation: Relation) -> tuple[int, ...]:
    """The shape with its -1 replaced by what is left."""
    known = math.prod(n for n in shape if n != -1)
    if shape.count(-1) == 1 and known and relation.num_elements % known == 0:
        shape = tuple([relation.num_elements // known if n == -1 else n for n in shape])
    if min(shape, default=0) < 0 or math.prod(shape) != relation.num_elements:
        raise ValueError(f"shape {relation.shape} cannot be reshaped to {list(shape)}")
    return shape


def _aligned(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The shortest runs of axes of both shapes that hold the same number of elements. A size 1 may stand alone."""
    runs: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        first_i, first_j = i, j
        left = right = 1
        if i < len(old) and j < len(new):
            left, right, i, j = old[i], new[j], i + 1, j + 1
            while left != right:
                if left < right:
                    left, i = left * old[i], i + 1
                else:
                    right, j = right * new[j], j + 1
        elif i < len(old):
            i += 1
        else:
            j += 1
        runs.append((old[first_i:i], new[first_j:j]))
    return runs
