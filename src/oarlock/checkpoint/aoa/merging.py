"""Merging blocks: fewer of them for the same relation."""

from collections.abc import Sequence

from oarlock.checkpoint.aoa.blocks import Atom, Block, Constant, fused


def merge(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """The same elements in fewer blocks: neighbours become one, equal blocks at a constant distance one more atom."""
    groups: dict[tuple[object, ...], list[Block]] = {}
    for block in blocks:
        groups.setdefault((block.source, block.ops), []).append(block)
    if len(groups) == len(blocks):
        return tuple(blocks)
    merged: list[Block] = []
    for group in groups.values():
        merged += _merged(group)
    return tuple(merged)


def _merged(group: list[Block]) -> list[Block]:
    """Blocks with one source and the same operations, joined with their neighbours until none fits."""
    while True:
        done: list[Block] = []
        for block in sorted(group, key=lambda block: block.dest_base):
            done.append(block)
            while len(done) > 1 and (both := joined(done[-2], done[-1])):
                done[-2:] = [both]
        if len(done) == len(group):
            return done
        group = done


def joined(first: Block, second: Block) -> Block | None:
    """One block with the elements of both, or None. Source and ops are the same, `first` starts before `second`."""
    shift = _shift(first, second)
    if shift is None:
        return None
    source_dim, source_step, dest_dim, dest_step = shift

    def grown(atom: Atom, extent: int) -> Block:
        atoms = (*(other for other in first.atoms if other is not atom), atom.every(1, extent))
        return Block(first.source, fused(atoms), first.source_base, first.dest_base, first.ops)

    if first.atoms == second.atoms:
        # a touching neighbour fuses with the atom it continues
        return grown(Atom(2, source_dim, source_step, dest_dim, dest_step), 2)
    for atom in first.atoms:  # `second` continues `first` along one of its atoms
        if atom.every(atom.extent, 2) != Atom(2, source_dim, source_step, dest_dim, dest_step):
            continue
        rest = [other for other in first.atoms if other is not atom]
        more = [other for other in second.atoms if other not in rest]
        if len(second.atoms) == len(rest) and not more:
            return grown(atom, atom.extent + 1)
        if len(second.atoms) == len(first.atoms) and len(more) == 1 and more[0].every(1, atom.extent) == atom:
            return grown(atom, atom.extent + more[0].extent)
    for atom in second.atoms:  # `first` is the single row before `second`
        rest = tuple(other for other in second.atoms if other is not atom)
        if first.atoms == rest and atom.every(1, 2) == Atom(2, source_dim, source_step, dest_dim, dest_step):
            return grown(atom, atom.extent + 1)
    return None


def _shift(first: Block, second: Block) -> tuple[int, int, int, int] | None:
    """(source axis, distance, destination axis, distance) from first to second; None unless along one axis each."""
    dest = [(dim, b - a) for dim, (a, b) in enumerate(zip(first.dest_base, second.dest_base, strict=True)) if a != b]
    source = [
        (dim, b - a) for dim, (a, b) in enumerate(zip(first.source_base, second.source_base, strict=True)) if a != b
    ]
    if isinstance(first.source, Constant):
        source = [(0, 0)]
    if len(dest) != 1 or len(source) != 1 or dest[0][1] < 0 or source[0][1] < 0:
        return None
    return *source[0], *dest[0]
