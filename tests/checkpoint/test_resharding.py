"""From shards to shards between simulated ranks: any layouts, any program, and never a byte more than must move.

The oracle: every source element is a number of its own, so that it can be followed; what a rank must receive are the
numbers that its destinations contain and its sources do not.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from oarlock.checkpoint import CheckpointError, Shard, resharding
from oarlock.checkpoint.aoa import AOA, AOAError, TensorSpec
from oarlock.checkpoint.boxes import Box
from oarlock.checkpoint.reshard_units import Home
from oarlock.checkpoint.shards import Piece
from simulated_ranks import ThreadRanks, on_ranks

SHAPES = {"a": (5, 6), "b": (3, 4), "c": (2, 6), "qkv": (8, 3), "e": (3, 2, 2), "t": (3, 4, 2), "v": (7,), "s": ()}
PROGRAMS = [
    "",
    "a -> x.a\nb^T -> x.b",
    "a, c -> ac, axis=0",
    "qkv -> q, k, vv, axis=0, sizes=[4,2,2]",
    "e -> e.0, e.1, e.2, stack=0",
    "qkv -> gu, rearrange='(two i) h -> (i two) h, two=2'",
    "t -> u, permute='[2,0,1]'\nb -> b2, reshape=[6,2]",
    "v -> p, pad=11",
    "a[::2] -> even\na[1::2] -> odd",
    "a -> x\na^T -> y\na[1:4] -> z",
    "q^T, k^T, k2^T -> w, fused_qkv, num_heads=4, num_key_value_groups=2",
]


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resharding, "Ranks", lambda group: group)


def numbered(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Tensors whose elements are all different, from 1 on."""
    tensors, start = {}, 1
    for name, shape in shapes.items():
        size = torch.Size(shape).numel()
        tensors[name] = torch.arange(start, start + size).view(shape)
        start += size
    return tensors


def in_boxes(tensor: Tensor, boxes: list[Box], *, fill: bool) -> Shard:
    """A rank's part of a tensor: these boxes, one after the other in a vector with a gap before each."""
    pieces, parts = [], []
    for box in boxes:
        place = sum(map(len, parts)) + 1
        pieces.append(Piece(box, Box((place,), (box.volume,))))
        parts += [torch.zeros(1, dtype=tensor.dtype), tensor[box.slices].reshape(-1) * fill]
    return Shard(torch.cat([torch.zeros(0, dtype=tensor.dtype), *parts]), tuple(tensor.shape), tuple(pieces))


@st.composite
def partition(draw: Any, shape: tuple[int, ...]) -> list[Box]:
    """A tensor cut into boxes, several times along any dim."""
    boxes = [Box.whole(shape)]
    for _ in range(draw(st.integers(0, 3))):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        dims = [dim for dim, size in enumerate(box.size) if size > 1]
        if not dims:
            boxes.append(box)
            continue
        dim = draw(st.sampled_from(dims))
        at = draw(st.integers(1, box.size[dim] - 1))
        for start, size in ((0, at), (at, box.size[dim] - at)):
            offset, sizes = list(box.offset), list(box.size)
            offset[dim], sizes[dim] = offset[dim] + start, size
            boxes.append(Box(tuple(offset), tuple(sizes)))
    return boxes


@st.composite
def layout(draw: Any, shape: tuple[int, ...], size: int, *, complete: bool) -> list[list[Box]]:
    """The boxes of a tensor on each rank; with `complete` every element is somewhere. Two ranks may cut differently."""
    held: list[list[Box]] = [[] for _ in range(size)]
    others = draw(st.sets(st.integers(0, size - 1), max_size=size - 1))
    for ranks, least in ((set(range(size)) - others, int(complete)), (others, 0)):
        for box in draw(partition(shape)) if ranks else []:
            for rank in draw(st.sets(st.sampled_from(sorted(ranks)), min_size=least)):
                held[rank].append(box)
    return held


def unique(tensors: Any) -> set[int]:
    """The numbers in a rank's part."""
    return {int(n) for shard in tensors.values() for _, view in shard.views() for n in view.reshape(-1)} - {0}


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(), text=st.sampled_from(PROGRAMS), size=st.integers(1, 5), staging=st.sampled_from([64, 1000, 10**6])
)
def test_any_layouts(data: st.DataObject, text: str, size: int, staging: int) -> None:
    shapes = {"q": (8, 4), "k": (4, 4), "k2": (4, 4)} if "fused" in text else SHAPES
    source = numbered(shapes)
    program = AOA(text).compile({name: TensorSpec.of(tensor) for name, tensor in source.items()}, None)
    wanted = program.apply(source)
    held = {name: data.draw(layout(tuple(t.shape), size, complete=True)) for name, t in source.items()}
    asked = {name: data.draw(layout(tuple(t.shape), size, complete=False)) for name, t in wanted.items()}

    def work(ranks: ThreadRanks) -> tuple[Any, ...]:
        src = {n: in_boxes(t, held[n][ranks.rank], fill=True) for n, t in source.items() if held[n][ranks.rank]}
        own = [n for n in wanted if asked[n][ranks.rank] or ranks.rank == 0]  # one that has nothing may be silent
        dst = {n: in_boxes(wanted[n], asked[n][ranks.rank], fill=False) for n in own}
        plan = resharding.plan_reshard(src, dst, ranks, aoa=text, strict="destination", staging_bytes=staging)
        for shard in src.values():  # the plan reads what is there when it runs
            shard.tensor.mul_(3)
        plan.run()
        for shard in (*src.values(), *dst.values()):
            shard.tensor.floor_divide_(3)
        for name, shard in dst.items():
            expected = in_boxes(wanted[name], asked[name][ranks.rank], fill=True)
            assert torch.equal(shard.tensor, expected.tensor), name
        assert ranks.largest_round <= staging
        return plan.report, 8 * len(unique(dst) - unique(src))

    results = on_ranks(size, work)
    report = results[0][0]
    assert report.received == tuple(least for _, least in results)
    assert all(r.sent == report.sent and r.received == report.received for r, _ in results)
    assert sum(report.sent) == sum(report.received)


def sharded(size: int, rank: int, tensor: Tensor, dim: int = 0) -> Shard:
    part = tensor.tensor_split(size, dim)[rank].clone()
    start = sum(p.shape[dim] for p in tensor.tensor_split(size, dim)[:rank])
    return Shard.box(part, tensor.shape, [start if k == dim else 0 for k in range(tensor.dim())])


def test_replicas_share_the_work() -> None:
    """Ranks 0 to 3 have all of it, rank 3 only of one tensor; 4 and 5 need it."""
    big, small = torch.randn(300, 1000), torch.randn(100, 1000)

    def work(ranks: ThreadRanks) -> Any:
        src = {"big": big.clone(), "small": small.clone()} if ranks.rank < 3 else {}
        if ranks.rank == 3:
            src = {"small": small.clone()}
        dst = {} if ranks.rank < 4 else {"big": torch.zeros(300, 1000), "small": torch.zeros(100, 1000)}
        report = resharding.reshard(src, dst, ranks)
        if dst:
            assert torch.equal(dst["big"], big)
            assert torch.equal(dst["small"], small)
        return report

    sent = on_ranks(6, work)[0].sent
    assert sum(sent) == 2 * (big.nbytes + small.nbytes)
    assert max(sent) - min(sent[:4]) <= 2 * 4000, "equal up to a row"


def test_the_same_machine_is_nearer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks 0 and 1 have it on different machines; rank 2 is where rank 1 is."""
    import threading

    monkeypatch.setattr("oarlock.checkpoint.reshard_routes.socket.gethostname", lambda: threading.current_thread().name)

    def work(ranks: ThreadRanks) -> Any:
        threading.current_thread().name = "left" if ranks.rank == 0 else "right"
        value = {"w": torch.ones(100, 1000)}
        return resharding.reshard(value if ranks.rank < 2 else {}, {} if ranks.rank < 2 else value, ranks)

    assert on_ranks(3, work)[0].sent == (0, 400_000, 0)


def test_casts_happen_on_the_cheaper_side() -> None:
    source = {"w": torch.randn(6, 4), "half": torch.randn(6, 4).bfloat16(), "both": torch.randn(6, 4)}
    program = "w -> w, dtype=bfloat16, add=1\nhalf -> half, dtype=float32\nboth -> x\nboth -> y, dtype=float16"

    def work(ranks: ThreadRanks) -> Any:
        dst: dict[str, Tensor] = {}
        if ranks.rank:
            kinds = {"w": torch.bfloat16, "half": torch.float32, "x": torch.float32, "y": torch.float16}
            dst = {name: torch.zeros(6, 4, dtype=dtype) for name, dtype in kinds.items()}
        report = resharding.reshard({} if ranks.rank else source, dst, ranks, aoa=program)
        if ranks.rank:
            assert torch.equal(dst["w"], source["w"].bfloat16() + 1)
            assert torch.equal(dst["half"], source["half"].float())
            assert torch.equal(dst["x"], source["both"])
            assert torch.equal(dst["y"], source["both"].half())
        return report

    assert on_ranks(2, work)[0].received == (0, 24 * (2 + 2 + 4))


def test_optimizer_states_follow_their_parameters() -> None:
    """Three ranks of flat ZeRO slices to two of tensor parallelism, with a fused projection between."""
    moments = {f"exp_avg/{name}": torch.randn(6, 4) for name in ("gate", "up")}
    steps = {f"step/{name}": torch.tensor(7.0) for name in ("gate", "up")}
    program = "gate, up -> gate_up, axis=0, dtype=bfloat16"

    def work(ranks: ThreadRanks) -> None:
        rank = ranks.rank
        src: dict[str, Tensor | Shard] = {
            name: Shard.flat(tensor.flatten()[rank * 9 : rank * 9 + 9].clone(), (6, 4), min(rank * 9, 24))
            for name, tensor in moments.items()
        }
        src |= {name: step.clone() for name, step in steps.items()} if rank == 2 else {}
        dst: dict[str, Tensor | Shard] = {}
        if rank < 2:
            dst = {
                "exp_avg/gate_up": Shard.fused(torch.zeros(6, 4), [6, 6], rank=rank, num_ranks=2),
                "step/gate_up": torch.tensor(0.0),
            }
        resharding.reshard(src, dst, ranks, aoa=program, slots=True)
        if rank < 2:
            rows = slice(rank * 3, rank * 3 + 3)
            expected = torch.cat([moments["exp_avg/gate"][rows], moments["exp_avg/up"][rows]])
            fused = dst["exp_avg/gate_up"]
            assert isinstance(fused, Shard)
            assert torch.equal(fused.tensor, expected)
            assert dst["step/gate_up"] == 7

    on_ranks(3, work)


def test_tied_weights_travel_once() -> None:
    weight = torch.randn(8, 4)

    def work(ranks: ThreadRanks) -> Any:
        src, dst = {}, {}
        if ranks.rank == 0:
            src = {"embed": weight, "head": weight}
        else:
            own = [sharded(2, ranks.rank - 1, torch.zeros(8, 4)) for _ in range(2)]
            dst = {"embed": own[0], "head": own[0] if ranks.rank == 1 else own[1]}
        report = resharding.reshard(src, dst, ranks)
        for shard in dst.values():
            assert torch.equal(shard.tensor, weight.chunk(2)[ranks.rank - 1])
        return report

    assert on_ranks(3, work)[0].received == (0, 64, 64)


def test_tied_destinations_need_one_value() -> None:
    def work(ranks: ThreadRanks, **options: Any) -> Tensor:
        shared = torch.zeros(4)
        src = {"embed": torch.ones(4), "head": torch.full((4,), 2.0)} if ranks.rank == 0 else {}
        dst = {} if ranks.rank == 0 else {"embed": shared, "head": shared}
        resharding.reshard(src, dst, ranks, **options)
        return shared

    with pytest.raises((ValueError, CheckpointError), match=r"embed and head share their memory .* prefer="):
        on_ranks(2, work)
    assert on_ranks(2, lambda ranks: work(ranks, prefer=["head"]))[1].tolist() == [2] * 4


@pytest.mark.parametrize(
    ("src", "dst", "options", "error", "match"),
    [
        ({"w": torch.zeros(2)}, {"w": torch.zeros(3)}, {}, CheckpointError, r"shape \[2\], the destination \[3\]"),
        ({"w": torch.zeros(2)}, {"w": torch.zeros(2).half()}, {}, CheckpointError, "pass cast=True"),
        ({"w": torch.zeros(2)}, {"v": torch.zeros(2)}, {}, CheckpointError, "1 tensors have no source: v"),
        ({"w": torch.zeros(2)}, {}, {}, CheckpointError, "have no destination: w"),
        ({"w": torch.zeros(2)}, {"v": torch.zeros(2)}, {"aoa": "x -> v"}, AOAError, "x"),
        ({}, {}, {"staging_bytes": 0}, ValueError, "staging_bytes must be >= 1"),
        ({"w": Shard.box(torch.zeros(2), (5,), (1,))}, {}, {}, ValueError, r"missing are \[0:1\]"),
        ({"w": 3}, {}, {}, TypeError, "expected a tensor"),
    ],
)
def test_what_does_not_fit(src: Any, dst: Any, options: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        on_ranks(1, lambda ranks: resharding.plan_reshard(src, dst, ranks, **options))


def test_ranks_must_agree() -> None:
    def work(ranks: ThreadRanks) -> None:
        resharding.plan_reshard({"w": torch.zeros(2 + ranks.rank)}, {}, ranks)

    with pytest.raises(ValueError, match=r"'w' has shape \[3\] on rank 1 and \[2\] on rank 0"):
        on_ranks(2, work)


def test_memory_on_both_sides() -> None:
    base = torch.zeros(10)
    with pytest.raises(ValueError, match="source 'w' and the destination 'w' share memory"):
        on_ranks(1, lambda ranks: resharding.plan_reshard({"w": base[:6]}, {"w": base[4:]}, ranks))
    on_ranks(1, lambda ranks: resharding.plan_reshard({"w": base[:5]}, {"w": base[5:]}, ranks))


@pytest.mark.parametrize("where", ["planning", "running"])
def test_all_ranks_hear_of_a_failure(where: str) -> None:
    def work(ranks: ThreadRanks) -> str:
        src = {"w": sharded(2, ranks.rank, torch.arange(8.0))}
        dst = {"w" if where == "running" or ranks.rank == 0 else "v": torch.zeros(8)}
        try:
            plan = resharding.plan_reshard(src, dst, ranks)
            if ranks.rank == 1:
                [[use, source, origin]] = plan._routes.local[0]
                plan._routes.local[0][0] = replace(use, home=Home(torch.zeros(8).double())), source, origin
            plan.run()
        except (CheckpointError, ValueError) as error:
            return str(error)
        raise AssertionError("nothing was raised")

    first, second = on_ranks(2, work)
    assert "rank 1" in first
    assert "resharding failed" in first
    assert "float64" in second if where == "running" else "have no source: v" in second
