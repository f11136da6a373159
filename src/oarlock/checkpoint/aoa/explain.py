"""Relations in words."""

from collections.abc import Sequence

from oarlock.checkpoint.aoa.algebra import Relation
from oarlock.checkpoint.aoa.blocks import Block, Constant
from oarlock.checkpoint.dtypes import dtype_name

_MOST_BLOCKS = 16


def explain(key: str, relation: Relation, origin: str, notes: Sequence[str]) -> str:
    """Name, shape, the statement that wrote it, and one line per block (the first of many)."""
    shape = " x ".join(map(str, relation.shape)) or "one number"
    count = len(relation.blocks)
    lines = [f"{key}: {shape}, {dtype_name(relation.dtype)}, {count} block{'s' * (count != 1)}", f"  by {origin}"]
    for block in relation.blocks[:_MOST_BLOCKS]:
        lines.append(f"  {_side(block, dest=True)} <- {_from(block)}")
    if count > _MOST_BLOCKS:
        lines.append(f"  ... and {count - _MOST_BLOCKS} more blocks")
    lines += [f"  note: {note}" for note in notes if f"{key!r}" in note]
    return "\n".join(lines)


def _from(block: Block) -> str:
    if isinstance(block.source, Constant):
        return f"filled with {block.source.value:g}"
    words = [f"{block.source}{_side(block, dest=False)}"]
    moves = list(dict.fromkeys((atom.dest_dim, atom.source_dim) for atom in block.atoms))
    order = [source for _, source in moves]
    if order != sorted(order):
        if len(order) == len(set(order)) == len({dest for dest, _ in moves}):
            words.append(f"axes in the order {', '.join(map(str, order))}")
        else:
            words += [f"axis {dest} runs along its axis {source}" for dest, source in moves]
    words += [str(op) + (f" ({op.only})" if op.only != "param" else "") for op in block.ops]
    return ", ".join(words)


def _side(block: Block, dest: bool) -> str:
    """The coordinates on one side, in numpy's spelling; several nested progressions of an axis are joined by +."""
    base = block.dest_base if dest else block.source_base
    texts = []
    for dim, start in enumerate(base):
        steps = [
            (atom.extent, atom.dest_step if dest else atom.source_step)
            for atom in block.atoms
            if (atom.dest_dim if dest else atom.source_dim) == dim
        ]
        if not steps:
            texts.append(str(start))
            continue
        [(extent, step), *outer] = _simplified(steps)
        inner = f"{start}:{start + (extent - 1) * step + 1}" + (f":{step}" if step > 1 else "")
        texts.append(" + ".join([inner, *(f"{step}*(0:{extent})" for extent, step in outer)]))
    return f"[{', '.join(texts)}]"


def _simplified(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(extent, step), smallest step first; one that continues where the one before ends is joined to it."""
    result: list[tuple[int, int]] = []
    for extent, step in sorted(steps, key=lambda pair: pair[1]):
        if result and step == result[-1][0] * result[-1][1]:
            result[-1] = (result[-1][0] * extent, result[-1][1])
        else:
            result.append((extent, step))
    return result
