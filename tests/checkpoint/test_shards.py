"""Shards: which global elements a local tensor holds. The oracle is real torch operations on tensors of indices."""

import math
import random
import warnings
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor
from torch.distributed.tensor import Shard as DShard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from oarlock.checkpoint.boxes import Box, explain_cover, find_overlap, flat_boxes, subtract
from oarlock.checkpoint.mapped_file import MappedFile
from oarlock.checkpoint.shards import Shard, shard_of
from oarlock.checkpoint.stored import StoredPiece, StoredTensor

shapes = st.lists(st.integers(0, 7), min_size=0, max_size=3).map(tuple)


def indices(shape: tuple[int, ...]) -> torch.Tensor:
    """The place of every element in row-major order."""
    return torch.arange(math.prod(shape)).view(shape)


def held(shard: Shard, shape: tuple[int, ...]) -> torch.Tensor:
    """The global tensor as this shard knows it; -1 where it holds nothing. No element comes twice."""
    out = torch.full(shape, -1)
    for box, view in shard.views():
        assert (out[box.slices] == -1).all()
        out[box.slices] = view
    return out


def as_rank(rank: int, num_ranks: int, mesh_shape: tuple[int, ...], placements: list, tensor: torch.Tensor) -> DTensor:
    """The DTensor that a rank of a job would hold, cut by torch without communication."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=num_ranks)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mesh = init_device_mesh("cpu", mesh_shape)
            return distribute_tensor(tensor, mesh, placements, src_data_rank=None)
    finally:
        dist.destroy_process_group()


class TestBoxes:
    """Boxes against sets of indices."""

    @given(st.data())
    def test_intersection_and_difference(self, data: st.DataObject) -> None:
        shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple))
        a, b = data.draw(boxes_in(shape)), data.draw(boxes_in(shape))
        of_a, of_b = set(indices(shape)[a.slices].flatten().tolist()), set(indices(shape)[b.slices].flatten().tolist())
        both = a.intersect(b)
        assert (set(indices(shape)[both.slices].flatten().tolist()) if both else set()) == of_a & of_b
        rest = [indices(shape)[part.slices].flatten().tolist() for part in subtract(a, b)]
        assert sorted(i for part in rest for i in part) == sorted(of_a - of_b)

    @given(st.data())
    def test_cover(self, data: st.DataObject) -> None:
        shape = data.draw(shapes)
        boxes = data.draw(st.lists(boxes_in(shape), max_size=5))
        counts = torch.zeros(shape, dtype=torch.int64)
        for box in boxes:
            counts[box.slices] += 1
        assert (find_overlap(boxes) is None) == bool((counts <= 1).all())
        assert (explain_cover(shape, boxes) is None) == bool((counts == 1).all())

    @given(st.data())
    def test_flat_ranges(self, data: st.DataObject) -> None:
        shape = data.draw(shapes)
        total = math.prod(shape)
        start = data.draw(st.integers(0, total))
        stop = data.draw(st.integers(start, total))
        boxes = flat_boxes(shape, start, stop)
        assert len(boxes) <= max(1, 2 * len(shape) - 1)
        parts = [indices(shape)[box.slices].flatten() for box in boxes]
        assert torch.cat([torch.empty(0, dtype=torch.int64), *parts]).tolist() == list(range(start, stop))

    def test_cover_names_a_hole(self) -> None:
        assert "missing are [2:4, 0:3]" in str(explain_cover((4, 3), [Box((0, 0), (2, 3))]))
        assert explain_cover((0, 3), []) is None
        rows = [Box((row, 0), (1, 3)) for row in range(3000)]
        assert "missing are [2999:3000, 0:3]" in str(explain_cover((3000, 3), rows[:-1]))

    @given(st.data())
    def test_the_hole_is_one(self, data: st.DataObject) -> None:
        shape = data.draw(shapes)
        apart: list[Box] = []
        for box in data.draw(st.lists(boxes_in(shape), max_size=6)):
            if all(box.intersect(other) is None for other in apart):
                apart.append(box)
        problem = explain_cover(shape, apart)
        if problem is not None:
            text = problem.rpartition("missing are [")[2].removesuffix("]")
            runs = [tuple(map(int, run.split(":"))) for run in text.split(", ") if run]
            hole = Box(tuple(a for a, _ in runs), tuple(b - a for a, b in runs))
            assert hole.volume
            assert all(hole.intersect(box) is None for box in apart)
            assert not shape or hole.intersect(Box.whole(shape)) == hole


def boxes_in(shape: tuple[int, ...]) -> st.SearchStrategy[Box]:
    pairs = [st.tuples(st.integers(0, n), st.integers(0, n)).map(sorted) for n in shape]
    return st.tuples(*pairs).map(lambda runs: Box(tuple(a for a, _ in runs), tuple(b - a for a, b in runs)))


MESHES = [
    ((4,), [DShard(0)]),
    ((3,), [DShard(1)]),
    ((2, 2), [DShard(0), DShard(0)]),
    ((2, 2), [DShard(0), DShard(1)]),
    ((2, 3), [Replicate(), DShard(0)]),
    ((2, 4), [DShard(0), DShard(0)]),
    ((2, 2), [_StridedShard(0, split_factor=2), DShard(0)]),
    ((3, 2), [_StridedShard(1, split_factor=2), DShard(1)]),
    ((2, 2), [_StridedShard(0, split_factor=3), Replicate()]),
]


@pytest.mark.parametrize("shape", [(8, 8), (5, 3), (2, 6), (1, 1), (0, 4), (7, 12)])
@pytest.mark.parametrize(("mesh_shape", "placements"), MESHES)
def test_dtensors(shape: tuple[int, ...], mesh_shape: tuple[int, ...], placements: list) -> None:
    num_ranks = math.prod(mesh_shape)
    seen = torch.zeros(shape, dtype=torch.int64)
    for rank in range(num_ranks):
        shard = shard_of(as_rank(rank, num_ranks, mesh_shape, placements, indices(shape)))
        known = held(shard, shape)
        assert torch.equal(known[known >= 0], indices(shape)[known >= 0])
        seen += known >= 0
    num_copies = math.prod(n for n, p in zip(mesh_shape, placements, strict=True) if p.is_replicate())
    assert (seen == num_copies).all()


def test_a_dtensor_that_is_cut_from_right_to_left() -> None:
    """The mesh dims may cut a tensor in another order than theirs."""
    spec = pytest.importorskip("torch.distributed.tensor._dtensor_spec")
    if not hasattr(spec, "ShardOrderEntry"):
        pytest.skip("this torch cuts from left to right only")
    shape, order = (13, 2), (spec.ShardOrderEntry(tensor_dim=0, mesh_dims=(1, 0)),)
    for rank in range(6):
        plain = as_rank(rank, 6, (2, 3), [DShard(0), DShard(0)], indices(shape))
        changed = spec.DTensorSpec(plain.device_mesh, plain.placements, plain._spec.tensor_meta, shard_order=order)
        row, column = divmod(rank, 3)
        local = indices(shape).tensor_split([5, 10])[column].tensor_split([3 if column < 2 else 2])[row]
        known = held(shard_of(DTensor(local, changed, requires_grad=False)), shape)
        assert torch.equal(known[known >= 0], local.flatten())
        assert torch.equal(known[known >= 0], indices(shape)[known >= 0])


def test_the_pieces_of_a_box_are_found_among_many() -> None:
    """In a grid and in a line, in any order, whatever their sizes."""
    generator = random.Random(0)
    for rows, columns in ((20, 20), (600, 1), (1, 600)):
        cuts = [sorted({0, 1000, *generator.sample(range(1000), count - 1)}) for count in (rows, columns)]
        boxes = [Box((a, c), (b - a, d - c)) for a, b in pairwise(cuts[0]) for c, d in pairwise(cuts[1])]
        generator.shuffle(boxes)
        stored = StoredTensor(torch.float32, (1000, 1000), tuple(StoredPiece(MappedFile(Path()), "", b) for b in boxes))
        for size in (1, 7, 100, 1000):
            offset = (generator.randint(0, 1000 - size), generator.randint(0, 1000 - size))
            wanted = Box(offset, (size, size))
            common = {common for box in boxes if (common := box.intersect(wanted)) is not None}
            parts = list(stored.parts(wanted))
            found = {
                Box(tuple(map(sum, zip(p.box.offset, p.piece.box.offset, strict=True))), p.box.size) for p in parts
            }
            assert found == common
            assert all(Box(p.place, p.box.size).volume for p in parts)
            assert {tuple(map(sum, zip(p.place, offset, strict=True))) for p in parts} == {box.offset for box in common}


def test_partial_sums_are_refused() -> None:
    with pytest.raises(ValueError, match="partial sums; redistribute"):
        shard_of(as_rank(0, 2, (2,), [Partial()], torch.ones(2, 2)))


@settings(deadline=None)
@given(st.data())
def test_flat_slices_of_a_part(data: st.DataObject) -> None:
    """ZeRO slices of a tensor-parallel shard, with padding behind the last one."""
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple))
    box = data.draw(boxes_in(shape))
    num_ranks = data.draw(st.integers(1, 4))
    length = -(-box.volume // num_ranks)
    flat = torch.cat([indices(shape)[box.slices].flatten(), torch.full((num_ranks * length - box.volume,), -7)])
    seen = torch.zeros(shape, dtype=torch.int64)
    for rank in range(num_ranks):
        start = rank * length
        shard = Shard.flat(flat[start : start + length], shape, start, box=box)
        known = held(shard, shape)
        assert torch.equal(known[known >= 0], indices(shape)[known >= 0])
        seen += known >= 0
    expected = torch.zeros(shape, dtype=torch.int64)
    expected[box.slices] = 1
    assert torch.equal(seen, expected)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_fused_projections_do_not_depend_on_the_number_of_ranks(num_ranks: int, dim: int) -> None:
    sizes = [8, 4, 4]
    shape = [3, 3]
    shape[dim] = 16
    whole = indices(tuple(shape))
    parts = [part.chunk(num_ranks, dim) for part in whole.split(sizes, dim)]
    out = torch.full(tuple(shape), -1)
    for rank in range(num_ranks):
        local = torch.cat([chunks[rank] for chunks in parts], dim)
        shard = Shard.fused(local, sizes, rank=rank, num_ranks=num_ranks, dim=dim)
        for box, view in shard.views():
            out[box.slices] = view
    assert torch.equal(out, whole)


def test_uneven_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="size 4 along dim 0 cannot be cut evenly over 3 ranks"):
        Shard.fused(torch.zeros(4, 2), [6, 4], rank=0, num_ranks=3)


def test_wrong_pieces_are_refused() -> None:
    with pytest.raises(ValueError, match="not inside of a tensor of shape"):
        Shard.box(torch.zeros(2, 2), (3, 3), (2, 0))
    with pytest.raises(ValueError, match="do not make up the local tensor"):
        Shard.blocks(torch.zeros(4, 2), (8, 2), 0, [(0, 2)])
    with pytest.raises(ValueError, match="would hold elements twice"):
        Shard.blocks(torch.zeros(4, 2), (8, 2), 0, [(0, 2), (1, 3)])
    with pytest.raises(ValueError, match="1-D"):
        Shard.flat(torch.zeros(4, 2), (8, 2), 0)
    with pytest.raises(ValueError, match="starts at 0 or above, got -1"):
        Shard.flat(torch.zeros(4), (8, 2), -1)


def test_views_share_memory_and_states_follow() -> None:
    local = torch.zeros(6, 2).t()  # not contiguous
    shard = Shard.blocks(local, (2, 12), 1, [(0, 3), (6, 9)])
    moment = shard.like(torch.ones(2, 6))
    for _, view in shard.views():
        view += 1
    assert (local == 1).all()
    assert [str(box) for box, _ in moment.views()] == ["[0:2, 0:3]", "[0:2, 6:9]"]
    with pytest.raises(ValueError, match="expected the local shape"):
        shard.like(torch.ones(3))
