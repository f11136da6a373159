"""Reversing a program: exchange the two sides of every block, then prove that each element is written exactly once.

Exchanged blocks are exact as long as they do not overlap. Where the program copies an element to several places (ties),
one of the copies is chosen and the others are cut away, so that the proof is by volume: blocks that are disjoint and
hold as many elements as the tensor cover it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from oarlock.checkpoint.aoa.algebra import Relation
from oarlock.checkpoint.aoa.blocks import Atom, Block, Constant
from oarlock.checkpoint.aoa.cutting import restrict
from oarlock.checkpoint.aoa.evaluate import TensorSpec
from oarlock.checkpoint.aoa.merging import merge
from oarlock.checkpoint.aoa.quantized import Computed

if TYPE_CHECKING:
    from oarlock.checkpoint.aoa.program import Program


def reverse(program: Program) -> Program:
    """See Program.reverse."""
    candidates: dict[str, list[Block]] = {}
    for key, relation in program.tensors.items():
        for block in relation.blocks:
            if isinstance(block.source, Computed):
                raise ValueError(f"{key!r} cannot be reversed: it is computed by {block.source}")
            if not isinstance(block.source, Constant):  # padding is of no use to anybody
                candidates.setdefault(block.source, []).append(block.swapped(key))
    tensors: dict[str, Relation] = {}
    notes: list[str] = []
    for key, spec in program.source.items():
        if math.prod(spec.shape) == 0 and key not in program.unread:
            tensors[key] = Relation(spec.shape, spec.dtype, ())
        elif key in candidates:
            found = candidates[key]
            # of equal copies prefer one without operations, then one of the same name, then the first
            found.sort(key=lambda block: (bool(block.ops), block.source != key))
            blocks, cut = without_overlap(found)
            held = sum(block.volume for block in blocks)
            if held != math.prod(spec.shape):
                raise ValueError(
                    f"{key!r} cannot be recovered: {math.prod(spec.shape) - held} of its {math.prod(spec.shape)} "
                    "elements are in no tensor of the destination"
                )
            if cut:
                chosen = ", ".join(sorted({repr(block.source) for block in blocks}))
                notes.append(f"{key!r} is read from {chosen}; {', '.join(map(repr, cut))} holds the same elements")
            tensors[key] = Relation(spec.shape, spec.dtype, merge(blocks))
    read = {block.source for relation in tensors.values() for block in relation.blocks}
    return replace(
        program,
        text=f"# reverse of\n{program.text}",
        source={key: TensorSpec(relation.shape, relation.dtype) for key, relation in program.tensors.items()},
        tensors=tensors,
        kept_keys=frozenset(key for key in program.source if key not in tensors),
        dropped=frozenset(),
        unread=frozenset(key for key in program.tensors if key not in read),
        written={},
        notes=tuple(notes),
        reversed=not program.reversed,
    )


def without_overlap(blocks: list[Block]) -> tuple[list[Block], list[str]]:
    """Disjoint blocks that write what these write, earlier ones first; and the sources that lost elements."""
    single = [part for block in blocks for part in injective(block)]
    if disjoint(single):
        return single, []
    accepted: list[Block] = []
    cut: dict[str, None] = {}
    for block in single:
        rest = [block]
        for other in accepted:
            rest = [part for piece in rest for part in (minus(piece, other) if meet(piece, other) else [piece])]
        if sum(part.volume for part in rest) < block.volume:
            cut[str(block.source)] = None
        accepted += rest
    return accepted, list(cut)


def injective(block: Block) -> Iterator[Block]:
    """The block in parts that write no destination element twice."""
    for dim in range(len(block.dest_base)):
        reach = 0
        for atom in sorted(_along(block, dim), key=lambda atom: atom.dest_step):
            if atom.dest_step <= reach:  # its rows overlap
                for index in range(atom.extent):
                    yield from injective(block.at(atom, index))
                return
            reach += (atom.extent - 1) * atom.dest_step
    yield block


def disjoint(blocks: list[Block]) -> bool:
    """Whether no two of the blocks write the same element; a sweep along the axis with most different places."""
    if len(blocks) < 2:
        return True
    boxes = [(block, *block.dest_box()) for block in blocks]
    dims = range(len(blocks[0].dest_base))
    sweep = max(dims, key=lambda dim: len({offset[dim] for _, offset, _ in boxes}), default=None)
    if sweep is None:
        return False  # two blocks of a tensor with one element
    active: list[tuple[Block, int]] = []
    for block, offset, size in sorted(boxes, key=lambda box: box[1][sweep]):
        active = [(other, stop) for other, stop in active if stop > offset[sweep]]
        if any(meet(block, other) for other, _ in active):
            return False
        active.append((block, offset[sweep] + size[sweep]))
    return True


def meet(a: Block, b: Block) -> bool:
    """Whether two blocks write a common element. Each writes a product of sets of coordinates, one per axis."""
    return all(
        any(_intersect(x, y) for x in coordinates(a, dim) for y in coordinates(b, dim))
        for dim in range(len(a.dest_base))
    )


def minus(block: Block, other: Block) -> list[Block]:
    """The part of a block that `other` does not write: per axis, what is outside the other's coordinates there."""
    outside: list[Block] = []
    inside = [block]
    for dim in range(len(block.dest_base)):
        runs = coordinates(other, dim)
        beyond = inside
        for run in runs:
            beyond = [part for piece in beyond for gap in _gaps(run) for part in restrict(piece, dim, *gap)]
        outside += beyond
        inside = [
            part for piece in inside for run in runs for part in restrict(piece, dim, run.start, run.stop, run.step)
        ]
    return outside


def coordinates(block: Block, dim: int) -> list[range]:
    """The coordinates along an axis that the block writes, as disjoint progressions."""
    runs = [range(block.dest_base[dim], block.dest_base[dim] + 1)]
    for atom in sorted(_along(block, dim), key=lambda atom: atom.dest_step):
        if len(runs) == 1 and len(runs[0]) == 1:
            start = runs[0].start
            runs = [range(start, start + (atom.extent - 1) * atom.dest_step + 1, atom.dest_step)]
        else:
            shifts = [index * atom.dest_step for index in range(atom.extent)]
            runs = [range(run.start + shift, run.stop + shift, run.step) for run in runs for shift in shifts]
    return runs


def _along(block: Block, dim: int) -> list[Atom]:
    return [atom for atom in block.atoms if atom.dest_dim == dim]


def _intersect(a: range, b: range) -> bool:
    """Whether two progressions share a number (the Chinese remainder theorem)."""
    first, last = max(a.start, b.start), min(a[-1], b[-1])
    gcd = math.gcd(a.step, b.step)
    if first > last or (b.start - a.start) % gcd:
        return False
    cycle = b.step // gcd
    turns = (b.start - a.start) // gcd * pow(a.step // gcd, -1, cycle) % cycle if cycle > 1 else 0
    common = a.start + turns * a.step
    period = a.step * cycle
    return common + max(0, -((common - first) // period)) * period <= last


def _gaps(run: range) -> Iterator[tuple[int, int, int]]:
    """What is outside of a progression, as (start, stop, step)."""
    yield 0, run.start, 1
    yield run[-1] + 1, 1 << 62, 1
    for shift in range(1, run.step):
        yield run.start + shift, run[-1], run.step
