"""The einops subset of `rearrange="(e two i) h -> e (two i) h, two=2"`: split axes, permute them, join them."""

import math
import re

from oarlock.checkpoint.aoa.algebra import Relation

_SIDE = re.compile(r"\s*(?:\(([^()]*)\)|([A-Za-z_]\w*|1))")


def rearrange(relation: Relation, pattern: str) -> Relation:
    """Apply a pattern `left -> right [, name=size ...]`.

    Each side lists the axes; parentheses hold the factors of one axis, outermost first, and `1` is an axis of size 1.
    Both sides name the same factors. All but one factor of an axis need a size.
    """
    sides, *settings = pattern.split(",")
    left_text, arrow, right_text = sides.partition("->")
    if not arrow:
        raise ValueError(f"rearrange={pattern!r} has no '->'")
    left, right = _axes(left_text), _axes(right_text)
    old = [name for axis in left for name in axis]
    new = [name for axis in right for name in axis]
    if len(set(old)) < len(old) or sorted(old) != sorted(new):
        raise ValueError(f"both sides of {sides.strip()!r} must name the same factors, each once")
    if len(left) != len(relation.shape):
        raise ValueError(f"{left_text.strip()!r} describes {len(left)} axes, the tensor has shape {relation.shape}")
    sizes = _sizes(settings, old)
    for axis, size in zip(left, relation.shape, strict=True):
        _complete(sizes, axis, size)
    factors = relation.reshape([sizes[name] for name in old])
    moved = factors.permute([old.index(name) for name in new]) if new else factors
    return moved.reshape([math.prod(sizes[name] for name in axis) for axis in right])


def _axes(text: str) -> list[list[str]]:
    """Names of the factors of every axis; no factors for `1`."""
    axes, at = [], 0
    while text[at:].strip():
        match = _SIDE.match(text, at)
        if match is None:
            raise ValueError(f"cannot read {text[at:].strip()!r} in a rearrange pattern")
        names = match[1].split() if match[1] is not None else [match[2]]
        axes.append([name for name in names if name != "1"])
        at = match.end()
    return axes


def _sizes(settings: list[str], names: list[str]) -> dict[str, int]:
    sizes = {}
    for setting in settings:
        match = re.fullmatch(r"\s*(\w+)\s*=\s*([0-9]+)\s*", setting)
        if match is None or match[1] not in names:
            raise ValueError(f"{setting.strip()!r} is no size of a factor in the rearrange pattern")
        sizes[match[1]] = int(match[2])
    return sizes


def _complete(sizes: dict[str, int], axis: list[str], size: int) -> None:
    """Add the size of the one factor of an axis that has none yet."""
    unknown = [name for name in axis if name not in sizes]
    known = math.prod(sizes[name] for name in axis if name in sizes)
    if len(unknown) > 1:
        raise ValueError(f"give sizes for all but one of {', '.join(unknown)}")
    if unknown and known and size % known == 0:
        sizes[unknown[0]] = size // known
    elif unknown or known != size:
        raise ValueError(f"an axis of size {size} is not ({' '.join(axis)}) with {known} known elements")
