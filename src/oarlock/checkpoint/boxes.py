"""Axis-aligned boxes of a tensor: what a shard holds, what a file stores, what a load must read."""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, Self

import numpy as np


class Box(NamedTuple):
    """The elements whose index along every dim is in [offset, offset + size); 0-d tensors have the box () ()."""

    offset: tuple[int, ...]
    size: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Self:
        """The box of all elements of a tensor of this shape."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def stop(self) -> tuple[int, ...]:
        """One past the last index along every dim."""
        return tuple(o + s for o, s in zip(self.offset, self.size, strict=True))

    @property
    def volume(self) -> int:
        """Number of elements."""
        return math.prod(self.size)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The box as an index: ``tensor[box.slices]`` is a view of its elements."""
        return tuple(slice(o, o + s) for o, s in zip(self.offset, self.size, strict=True))

    def intersect(self, other: Self) -> Self | None:
        """The elements of both boxes, None if there are none."""
        start = tuple(map(max, self.offset, other.offset))
        size = tuple(min(a, b) - s for a, b, s in zip(self.stop, other.stop, start, strict=True))
        return type(self)(start, size) if all(s > 0 for s in size) else None

    def within(self, outer: Self) -> Self:
        """The same elements, counted from the first corner of `outer`."""
        return type(self)(tuple(o - base for o, base in zip(self.offset, outer.offset, strict=True)), self.size)

    def __str__(self) -> str:
        return "[" + ", ".join(f"{o}:{o + s}" for o, s in zip(self.offset, self.size, strict=True)) + "]"


def find_overlap(boxes: Sequence[Box]) -> tuple[int, int] | None:
    """Two boxes of equal rank that share an element, as indices into `boxes`; None if all are disjoint.

    A sweep along the dim with the most distinct offsets; only boxes that are open at the same time are compared.
    """
    live = [i for i, box in enumerate(boxes) if box.volume]
    if len(live) < 2:
        return None
    offsets = np.array([boxes[i].offset for i in live]).reshape(len(live), -1)
    if not offsets.shape[1]:
        return live[0], live[1]
    axis = max(range(offsets.shape[1]), key=lambda a: len(set(offsets[:, a].tolist())))
    open_boxes: list[int] = []
    for i in sorted(live, key=lambda i: boxes[i].offset[axis]):
        start = boxes[i].offset[axis]
        open_boxes = [j for j in open_boxes if boxes[j].stop[axis] > start]
        for j in open_boxes:
            if boxes[i].intersect(boxes[j]) is not None:
                return min(i, j), max(i, j)
        open_boxes.append(i)
    return None


def explain_cover(shape: Sequence[int], boxes: Sequence[Box]) -> str | None:
    """Why `boxes` do not hold every element of a tensor of this shape exactly once; None if they do.

    Disjoint boxes inside the tensor cover it if and only if their volumes add up to its own.
    """
    whole = Box.whole(shape)
    for box in boxes:
        if box.volume and box.intersect(whole) != box:
            return f"{box} lies outside of the shape {list(shape)}"
    overlap = find_overlap(boxes)
    if overlap is not None:
        return f"{boxes[overlap[0]]} and {boxes[overlap[1]]} overlap"
    boxes = [box for box in boxes if box.volume]
    covered = sum(box.volume for box in boxes)
    if covered != whole.volume:
        return f"{covered} of {whole.volume} elements of {list(shape)} are there; missing are {_hole(whole, boxes)}"
    return None


def subtract(box: Box, other: Box) -> list[Box]:
    """The elements of `box` that are not in `other`, as at most two disjoint boxes per dim."""
    common = box.intersect(other)
    if common is None:
        return [box] if box.volume else []
    rest = []
    for axis in range(len(box.size)):
        for start, stop in ((box.offset[axis], common.offset[axis]), (common.stop[axis], box.stop[axis])):
            if start < stop:
                rest.append(_replace(box, axis, start, stop))
        box = _replace(box, axis, common.offset[axis], common.stop[axis])
    return rest


def flat_boxes(shape: Sequence[int], start: int, stop: int) -> list[Box]:
    """The elements [start, stop) of a tensor in row-major order, as boxes in that order, at most 2 * rank - 1.

    Raises:
        ValueError: the range is not inside of the tensor.
    """
    total = math.prod(shape)
    if not 0 <= start <= stop <= total:
        raise ValueError(
            f"elements {start} to {stop} are not inside of a tensor of shape {list(shape)} ({total} elements)"
        )
    return [box for box in _flat(tuple(shape), start, stop) if box.volume]


def _flat(shape: tuple[int, ...], start: int, stop: int) -> Iterable[Box]:
    if start >= stop:
        return
    if not shape:
        yield Box((), ())
        return
    row = math.prod(shape[1:])
    first, last = start // row, (stop - 1) // row
    if first == last:
        yield from (_prepend(first, 1, box) for box in _flat(shape[1:], start - first * row, stop - first * row))
        return
    if start % row:
        yield from (_prepend(first, 1, box) for box in _flat(shape[1:], start % row, row))
        first += 1
    full_stop = stop // row
    if first < full_stop:
        yield _prepend(first, full_stop - first, Box.whole(shape[1:]))
    if stop % row:
        yield from (_prepend(full_stop, 1, box) for box in _flat(shape[1:], 0, stop % row))


def _prepend(offset: int, size: int, box: Box) -> Box:
    return Box((offset, *box.offset), (size, *box.size))


def _replace(box: Box, axis: int, start: int, stop: int) -> Box:
    offset, size = list(box.offset), list(box.size)
    offset[axis], size[axis] = start, stop - start
    return Box(tuple(offset), tuple(size))


def _hole(whole: Box, boxes: Sequence[Box]) -> Box:
    """Some elements that no box holds; the boxes are disjoint, inside of the whole, and do not make it up.

    Dim by dim the first slab is taken in which the boxes have too small a volume.
    """
    hole: list[tuple[int, int]] = []
    for dim, size in enumerate(whole.size):
        change = dict.fromkeys((0, size), 0)
        for box in boxes:
            area = math.prod(box.size[dim + 1 :])
            change[box.offset[dim]] = change.get(box.offset[dim], 0) + area
            change[box.stop[dim]] = change.get(box.stop[dim], 0) - area
        cuts = sorted(change)
        areas = accumulate(change[cut] for cut in cuts)
        start, stop = next(
            slab for slab, area in zip(pairwise(cuts), areas, strict=False) if area < math.prod(whole.size[dim + 1 :])
        )
        hole.append((start, stop - start))
        boxes = [box for box in boxes if box.offset[dim] <= start and stop <= box.stop[dim]]
    return Box(tuple(offset for offset, _ in hole), tuple(size for _, size in hole))
