"""Tensors that are stored under other names and in another form, and can be made of what is stored."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from oarlock.checkpoint.aoa import Atom, Block, Relation
from oarlock.checkpoint.aoa.blocks import atom_order
from oarlock.checkpoint.stored import StoredTensor


@dataclass(frozen=True, eq=False)
class Derived:
    """A tensor that consists of elements of stored ones, as a relation says."""

    relation: Relation
    stored: Mapping[str, StoredTensor]

    @property
    def dtype(self) -> torch.dtype:
        """Of its elements."""
        return self.relation.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole tensor."""
        return self.relation.shape


def composed(block: Block, relation: Relation) -> Iterator[Block]:
    """The block with the tensor that it reads replaced by what that tensor consists of.

    With at most one atom per axis of the tensor read, the elements read are a slice with steps of it, whose blocks say
    where each comes from; the atom then says where each goes. Further atoms on an axis are first taken index by index.
    """
    by_dim: dict[int, Atom] = {}
    for atom in sorted(block.atoms, key=lambda atom: -atom.extent):
        if by_dim.setdefault(atom.source_dim, atom) is not atom:
            for index in range(atom.extent):
                yield from composed(block.at(atom, index), relation)
            return
    for dim, start in enumerate(block.source_base):
        extent, step = (by_dim[dim].extent, by_dim[dim].source_step) if dim in by_dim else (1, 1)
        relation = relation.slice(dim, start, start + (extent - 1) * step + 1, step)
    for part in relation.blocks:
        base = list(block.dest_base)
        for dim, atom in by_dim.items():
            base[atom.dest_dim] += part.dest_base[dim] * atom.dest_step
        moved = [a._replace(dest_dim=by_dim[a.dest_dim].dest_dim, dest_step=a.dest_step * by_dim[a.dest_dim].dest_step)
                 for a in part.atoms]  # fmt: skip
        atoms = tuple(sorted(moved, key=atom_order))
        yield Block(part.source, atoms, part.source_base, tuple(base), (*part.ops, *block.ops))
