"""Cutting blocks: to the elements in a range of coordinates, and at the ends of rows. Both stay affine, exactly.

Along one destination axis a block has the coordinates d + Σ i_a δ_a. Fixing the index of the atom with the largest
step leaves a *row*: the coordinates that the other atoms reach, at most `span` beyond the row's first.
"""

import math
from collections.abc import Iterator

from oarlock.checkpoint.aoa.blocks import Atom, Block


def restrict(block: Block, dim: int, start: int, stop: int, step: int = 1) -> list[Block]:
    """The elements of a block whose coordinate along destination axis `dim` is in range(start, stop, step)."""
    base = block.dest_base[dim]
    atoms = [atom for atom in block.atoms if atom.dest_dim == dim]
    if not atoms:
        return [block] if base in range(start, stop, step) else []
    outer, span = _outermost(atoms)
    last = outer.extent - 1
    touched = range(
        max(0, -((base + span - start) // outer.dest_step)), min(last, (stop - 1 - base) // outer.dest_step) + 1
    )
    inside = range(
        max(touched.start, -((base - start) // outer.dest_step)),
        min(touched.stop - 1, (stop - 1 - base - span) // outer.dest_step) + 1,
    )
    if step == 1 and len(inside) == outer.extent:
        return [block]
    parts = []
    for index in touched:
        if index not in inside:  # a row that the range cuts
            parts += restrict(block.at(outer, index), dim, start, stop, step)
    # Rows `period` apart have the same coordinates modulo the step: what remains of one remains of all.
    period = step // math.gcd(step, outer.dest_step)
    for first in inside[:period]:
        rows = outer.every(period, len(range(first, inside.stop, period)))
        for row in restrict(block.at(outer, first), dim, start, stop, step) if step > 1 else [block.at(outer, first)]:
            parts.append(row.with_atom(rows))
    return parts


def at_row_ends(block: Block, dim: int, width: int) -> Iterator[Block]:
    """The block in parts on each of which coordinate // width and coordinate % width are affine.

    With atoms whose step is a multiple of the width (they only move from row to row) left aside, the others must stay
    within one row: offset + span < width.
    """
    offset = block.dest_base[dim] % width
    atoms = [atom for atom in block.atoms if atom.dest_dim == dim and atom.dest_step % width]
    reach = sum((atom.extent - 1) * atom.dest_step for atom in atoms)
    if offset + reach < width:
        yield block
        return
    outer, span = _outermost(atoms)
    n, step = outer.extent, outer.dest_step
    if width % step:  # indices `period` apart lie at the same place of their rows
        period = width // math.gcd(width, step)
        for first in range(min(period, n)):
            same_place = outer.every(period, len(range(first, n, period)))
            yield from at_row_ends(block.at(outer, first).with_atom(same_place), dim, width)
        return
    per_row = width // step
    head = 0 if offset < step else -((offset - width) // step)  # indices before the first that starts a row
    if head >= n or (head == 0 and n <= per_row):  # all start in one row, the last ones reach beyond its end
        within = max(0, (width - 1 - span - offset) // step + 1)
        if within:
            yield block.part(outer, 0, within)
        for index in range(within, n):
            yield from at_row_ends(block.at(outer, index), dim, width)
        return
    num_rows, tail = divmod(n - head, per_row)
    if head:
        yield from at_row_ends(block.part(outer, 0, head), dim, width)
    if num_rows:
        rows = block.at(outer, head).with_atom(outer.every(per_row, num_rows)).with_atom(outer.every(1, per_row))
        yield from at_row_ends(rows, dim, width)
    if tail:
        yield from at_row_ends(block.part(outer, n - tail, tail), dim, width)


def _outermost(atoms: list[Atom]) -> tuple[Atom, int]:
    """The atom with the largest step, and how far the others reach."""
    outer = max(atoms, key=lambda atom: atom.dest_step)
    span = sum((atom.extent - 1) * atom.dest_step for atom in atoms if atom is not outer)
    return outer, span
