"""Loading with an exchange: each byte of the files is read once, by a rank that needs it, and sent where it belongs."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from oarlock.checkpoint import CheckpointError, Shard, load_checkpoint, save_checkpoint
from oarlock.checkpoint.aoa import AOA
from oarlock.checkpoint.boxes import Box, explain_cover, find_overlap
from oarlock.checkpoint.exchange import Stretch, assign, share
from oarlock.checkpoint.loading import LoadPlan
from oarlock.checkpoint.shards import shard_of
from process_group import run_ranks
from simulated_ranks import ThreadRanks, on_ranks


def whole() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (40, 6), "b": (70, 600), "c": (300,), "s": (), "none": (0, 3), "row": (1, 50)}
    return {n: torch.randn(shape, generator=generator) for n, shape in shapes.items()} | {"h": torch.ones(9).half()}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stored in two pieces each, as two ranks would."""
    tensors = {}
    for name, tensor in whole().items():
        tensors[name] = tensor
        if tensor.dim() and tensor.shape[0] > 1:
            cut, size = tensor.shape[0] // 3, tensor.shape[0]
            swapped = torch.cat([tensor[cut:], tensor[:cut]])
            tensors[name] = Shard.blocks(swapped, tensor.shape, 0, [(cut, size), (0, cut)])
    return save_checkpoint(tmp_path_factory.mktemp("saved"), 1, tensors={"m": tensors})


def part(tensor: Tensor, kind: str, rank: int, size: int) -> Shard | None:
    """What a rank wants of a tensor."""
    if kind == "whole" or tensor.dim() == 0 or not tensor.numel():
        return Shard.whole(torch.zeros_like(tensor))
    if kind == "flat":
        length = -(-tensor.numel() // size)
        start = min(rank * length, tensor.numel())
        return Shard.flat(torch.zeros(min(length, tensor.numel() - start)).to(tensor.dtype), tensor.shape, start)
    dim = -1 if kind == "columns" else 0
    parts = tensor.tensor_split(size, dim)
    offset = [0] * tensor.dim()
    offset[dim] = sum(p.shape[dim] for p in parts[:rank])
    return Shard.box(torch.zeros_like(parts[rank]), tensor.shape, offset)


def load(path: Path, ranks: ThreadRanks, wanted: dict[str, Shard], mode: Any, machines: list[str], aoa: Any) -> Any:
    """A load by hand, since simulated ranks are no torch.distributed group."""
    source = load_checkpoint(path, verify="read").source("m")
    plan = LoadPlan(source.tensors, {n: shard_of(s) for n, s in wanted.items()}, "destination", False)
    plan.by_name() if aoa is None else plan.by_program(aoa)
    plan.finish()
    plan.check()
    shared = share(source.tensors, plan.transfers, ranks, mode, machines, "failed")
    if shared is not None:
        for transfer in shared.own:
            transfer.run()
        shared.run("failed")
    return shared


KINDS = ["whole", "rows", "columns", "flat", "nothing"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=2, max_size=5),
    mode=st.sampled_from([True, "node"]),
    num_machines=st.integers(1, 3),
)
def test_any_layout(path: Path, kinds: list[str], mode: Any, num_machines: int) -> None:
    size = len(kinds)
    machines = [f"m{rank % num_machines}" for rank in range(size)]

    def work(ranks: ThreadRanks) -> Any:
        kind = kinds[ranks.rank]
        wanted = {n: part(t, kind, ranks.rank, size) for n, t in whole().items()} if kind != "nothing" else {}
        shared = load(path, ranks, wanted, mode, machines, None)  # type: ignore[arg-type]
        for name, shard in wanted.items():
            assert shard is not None
            for box, view in shard.views():
                assert torch.equal(view, whole()[name][box.slices]), name
        return shared.bytes_read, [(read.piece.name, read.box) for read in shared.reads]

    found = on_ranks(size, work)
    for machine in sorted(set(machines)) if mode == "node" else [None]:
        group = [rank for rank in range(size) if machine in (None, machines[rank])]
        read: dict[str, list[Box]] = {}
        for rank in group:
            for name, box in found[rank][1]:
                read.setdefault(name, []).append(box)
        assert all(find_overlap(boxes) is None for boxes in read.values()), "each element is read once"
        if any(kinds[rank] == "whole" for rank in group):
            assert sum(found[rank][0] for rank in group) == sum(t.nbytes for t in whole().values())


def test_reading_is_balanced(path: Path) -> None:
    def work(ranks: ThreadRanks) -> int:
        wanted = {name: Shard.whole(torch.zeros_like(tensor)) for name, tensor in whole().items()}
        return load(path, ranks, wanted, True, ["m"] * 4, None).bytes_read

    found = on_ranks(4, work)
    total = sum(t.nbytes for t in whole().values())
    assert sum(found) == total
    assert max(found) <= total / 4 + 600 * 4, "equal up to a row"


def test_columns_are_read_in_rows(path: Path) -> None:
    """Each rank wants some columns: it reads whole rows of its own, not the strips of all rows."""

    def work(ranks: ThreadRanks) -> Any:
        wanted = {"b": part(whole()["b"], "columns", ranks.rank, 3)}
        shared = load(path, ranks, wanted, True, ["m"] * 3, None)  # type: ignore[arg-type]
        assert torch.equal(wanted["b"].tensor, whole()["b"].tensor_split(3, 1)[ranks.rank])  # type: ignore[union-attr]
        return [read.box for read in shared.reads], shared.bytes_read

    found = on_ranks(3, work)
    assert all(box.size[1] == 600 for boxes, _ in found for box in boxes)
    assert sum(num_bytes for _, num_bytes in found) == whole()["b"].nbytes


def test_auto_looks_at_the_machines(path: Path) -> None:
    """Replicas on two machines would read twice what is needed; strips of one machine, or rows apart, would not."""

    def wants(kind: str, machines: list[str]) -> bool:
        def work(ranks: ThreadRanks) -> bool:
            wanted = {"a": part(whole()["a"], kind, ranks.rank, len(machines))}
            return load(path, ranks, wanted, "auto", machines, None) is not None  # type: ignore[arg-type]

        answers = on_ranks(len(machines), work)
        assert len(set(answers)) == 1
        return answers[0]

    assert wants("whole", ["x", "y"])
    assert wants("columns", ["x", "y"])
    assert not wants("whole", ["x", "x"])
    assert not wants("rows", ["x", "y"])


def test_a_program_and_a_cast_on_the_way(path: Path) -> None:
    def work(ranks: ThreadRanks) -> int:
        wanted = {"t": Shard.whole(torch.zeros(6, 40, dtype=torch.bfloat16)), "p": Shard.whole(torch.ones(310))}
        aoa = AOA("a^T -> t, dtype=bfloat16\nc -> p, pad=310\nb -> _\ns -> _\nnone -> _\nrow -> _\nh -> _")
        shared = load(path, ranks, wanted, True, ["m"] * 2, aoa)
        assert torch.equal(wanted["t"].tensor, whole()["a"].T.bfloat16())
        assert torch.equal(wanted["p"].tensor, torch.cat([whole()["c"], torch.zeros(10)]))
        return shared.received

    received = on_ranks(2, work)
    assert sum(received) == 40 * 6 * 2 + 300 * 4, "each half once, a in bf16"


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 9)), min_size=1, max_size=8),
    sets=st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=8, max_size=8),
)
def test_assigned_rows_make_up_the_stretches(sizes: list[tuple[int, int]], sets: list[set[int]]) -> None:
    stretches = [
        Stretch(number, Box((5, 2), shape), tuple(sorted(sets[number])), 40_000 * shape[0] * shape[1])
        for number, shape in enumerate(sizes)
    ]
    assigned = assign(stretches, 4)
    for stretch in stretches:
        own = [(box, rank) for piece, box, rank in assigned if piece == stretch.piece]
        assert {rank for _, rank in own} <= set(stretch.needers)
        boxes = [box.within(stretch.box) for box, _ in own]
        assert explain_cover(stretch.box.size, boxes) is None


PROGRAM = "q, k -> qk, axis=0\ne^T -> e, dtype=bfloat16"


def with_files(root: str) -> dict[str, Any]:
    """Three ranks save in pieces and load all of it, and strips, with an exchange; then a file is damaged."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    big = {n: torch.arange(200_000.0).view(500, 400) + i for i, n in enumerate(["q", "k"])}
    tensors = big | {"e": torch.randn(300, 200, generator=torch.Generator().manual_seed(1))}

    def rows(tensor: Tensor) -> Shard:
        parts = tensor.tensor_split(3)
        return Shard.box(parts[rank].clone(), tensor.shape, (sum(map(len, parts[:rank])), 0))

    path = save_checkpoint(root, 1, tensors={"m": {name: rows(tensor) for name, tensor in tensors.items()}})
    saved = load_checkpoint(path, verify="read")
    reports = []
    for mode in (True, "node", "auto", False):
        qk, e = torch.zeros(1000, 400), torch.zeros(200, 300, dtype=torch.bfloat16)
        report = saved.load("m", {"qk": qk, "e": e}, aoa=PROGRAM, exchange=mode)  # type: ignore[arg-type]
        assert torch.equal(qk, torch.cat(list(big.values())))
        assert torch.equal(e, tensors["e"].T.bfloat16())
        reports.append([report.bytes_needed, report.bytes_read, report.bytes_received])
    restart = from_copies(root + "-copies", rank)
    dist.barrier()
    if rank == 0:
        damaged = max(path.glob("*.safetensors"))
        raw = bytearray(damaged.read_bytes())
        raw[-1000] ^= 1
        damaged.write_bytes(raw)
    dist.barrier()
    untouched = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    try:
        load_checkpoint(path, verify="read").load("m", untouched, exchange=True)
    except CheckpointError as error:
        message = str(error)
    assert not any(tensor.any() for tensor in untouched.values())
    dist.destroy_process_group()
    return {"reports": reports, "message": message, "restart": restart}


def from_copies(root: str, rank: int) -> list[list[str]]:
    """Replicas saved with copies are loaded again: the files of tensors that this process has opened, and its own."""
    replica, own = torch.arange(3000.0), torch.full((10,), float(rank))
    state = {"replica": replica, "own": Shard.box(own, (30,), (10 * rank,))}
    path = save_checkpoint(root, 1, tensors={"m": state}, copies=True)
    found = {"replica": torch.zeros(3000), "own": Shard.box(torch.zeros(10), (30,), (10 * rank,))}
    saved = load_checkpoint(path, verify="read")
    report = saved.load("m", found, exchange=True)
    assert torch.equal(found["replica"], replica)
    assert torch.equal(found["own"].tensor, own)
    assert report.foreign_files == []
    mapped = {line.rpartition("/")[2] for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line}
    del saved
    return [sorted(mapped), report.files]


def test_real_ranks(tmp_path: Path) -> None:
    found = run_ranks(3, with_files, tmp_path, timeout=120)
    needed = 4 * (2 * 200_000 + 60_000)
    for mode in range(4):
        reports = [result["reports"][mode] for result in found]
        assert all(report[0] == needed for report in reports)
        shared = mode < 2
        assert sum(report[1] for report in reports) == (needed if shared else 3 * needed)
        received = 2 * (4 * 400_000 + 2 * 60_000) if shared else 0
        assert sum(report[2] for report in reports) == received, "the rest, cast where that makes it smaller"
    opened = [result["restart"][0] for result in found]
    assert opened == [result["restart"][1] for result in found]
    assert len({name for names in opened for name in names}) == sum(map(len, opened)), "each rank has its own"
    assert len({result["message"] for result in found}) == 1
    assert "expected digest" in found[0]["message"]
    assert "nothing was changed" in found[0]["message"]
