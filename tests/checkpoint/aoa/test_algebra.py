"""The algebra against real torch operations on index tensors: every element of every tensor must come from the same
source element. Programs, shapes and queries are drawn by hypothesis."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from oarlock.checkpoint.aoa.algebra import Relation, concat, stack, whole
from oarlock.checkpoint.aoa.blocks import Block

PAIR = tuple[Relation, Tensor]


def filled(shape: tuple[int, ...], blocks: tuple[Block, ...], sources: dict[str, Tensor]) -> Tensor:
    """What the blocks write, -1 where they do not."""
    out = torch.full(shape, -1, dtype=torch.int64)
    for block in blocks:
        block.copy(sources[block.source] if isinstance(block.source, str) else out, out)
    return out


def check(relation: Relation, expected: Tensor, sources: dict[str, Tensor]) -> None:
    assert relation.shape == tuple(expected.shape)
    assert torch.equal(filled(relation.shape, relation.blocks, sources), expected)
    assert sum(block.volume for block in relation.blocks) == expected.numel()  # with equality: each written once
    for block in relation.blocks:
        assert all(atom.extent > 1 and atom.dest_step > 0 for atom in block.atoms)


@st.composite
def programs(draw: st.DrawFn, sizes: tuple[int, ...] = (1, 2, 3, 4, 6, 8)) -> tuple[dict[str, Tensor], list[PAIR]]:
    """Sources of distinct numbers, and all tensors of a random program with what torch makes of them."""
    sources: dict[str, Tensor] = {}
    pool: list[PAIR] = []
    first = 1  # 0 is what padding holds
    for index in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=3)))
        values = torch.arange(first, first + math.prod(shape)).view(shape)
        first += values.numel()
        sources[f"s{index}"] = values
        pool.append((whole(f"s{index}", shape, torch.int64), values))
    for _ in range(draw(st.integers(1, 6))):
        relation, x = draw(st.sampled_from(pool))
        if new := draw(steps(relation, x, pool)):
            pool.append(new)
    return sources, pool


@st.composite
def steps(draw: st.DrawFn, relation: Relation, x: Tensor, pool: list[PAIR]) -> PAIR | None:
    kind = draw(
        st.sampled_from(["permute", "flatten", "unflatten", "slice", "concat", "stack", "reshape", "deal", "pad"])
    )
    dim = draw(st.integers(0, x.dim() - 1)) if x.dim() else 0
    if x.dim() == 0 or x.numel() > 4000:
        return None
    size = x.shape[dim]
    if kind == "permute":
        order = draw(st.permutations(range(x.dim())))
        return relation.permute(order), x.permute(*order)
    if kind == "flatten" and dim + 1 < x.dim():
        return relation.flatten(dim), x.flatten(dim, dim + 1)
    if kind == "unflatten" and size:
        width = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
        return relation.unflatten(dim, size // width, width), x.unflatten(dim, (size // width, width))
    if kind == "slice" and size:
        start = draw(st.integers(0, size - 1))
        stop = draw(st.integers(start, size))
        step = draw(st.integers(1, 4))
        return relation.slice(dim, start, stop, step), x[(slice(None),) * dim + (slice(start, stop, step),)]
    if kind in ("concat", "stack"):
        free = dim if kind == "concat" else None  # the axis that may differ
        fits = [(r, y) for r, y in pool if _sizes(y, free) == _sizes(x, free)]
        parts = [(relation, x), *draw(st.lists(st.sampled_from(fits), min_size=1, max_size=3))]
        if kind == "concat":
            return concat([r for r, _ in parts], dim), torch.cat([y for _, y in parts], dim)
        return stack([r for r, _ in parts], dim), torch.stack([y for _, y in parts], dim)
    if kind == "reshape" and x.numel():
        left, shape = x.numel(), []
        while left > 1:
            shape.append(draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0][-4:])))
            left //= shape[-1]
        shape.insert(draw(st.integers(0, len(shape))), 1)
        return relation.reshape(shape), x.reshape(shape)
    if kind == "deal" and size % 2 == 0 and size:  # the interleaving of two halves
        halves = relation.unflatten(dim, 2, size // 2)
        order = list(range(x.dim() + 1))
        order[dim], order[dim + 1] = order[dim + 1], order[dim]
        dealt = x.unflatten(dim, (2, size // 2)).permute(order).flatten(dim, dim + 1)
        return halves.permute(order).flatten(dim), dealt
    if kind == "pad":
        more = draw(st.integers(0, 3))
        shape = list(x.shape)
        shape[dim] = more
        return relation.pad(dim, size + more), torch.cat([x, x.new_zeros(shape)], dim)
    return None


def _sizes(x: Tensor, free: int | None) -> list[int]:
    return [-1 if k == free else n for k, n in enumerate(x.shape)]


@settings(max_examples=250, deadline=None)
@given(programs())
def test_every_tensor_of_a_program_is_what_torch_makes(program: tuple[dict[str, Tensor], list[PAIR]]) -> None:
    sources, pool = program
    for relation, expected in pool:
        check(relation, expected, sources)


@settings(max_examples=250, deadline=None)
@given(programs(), st.data())
def test_a_queried_box_is_the_slice_of_the_tensor(
    program: tuple[dict[str, Tensor], list[PAIR]], data: st.DataObject
) -> None:
    sources, pool = program
    relation, expected = pool[-1]
    offset = [data.draw(st.integers(0, n)) for n in relation.shape]
    size = [data.draw(st.integers(0, n - o)) for o, n in zip(offset, relation.shape, strict=True)]
    box = tuple(slice(o, o + s) for o, s in zip(offset, size, strict=True))
    assert torch.equal(filled(tuple(size), relation.query(offset, size), sources), expected[box])
