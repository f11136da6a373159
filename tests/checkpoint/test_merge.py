"""Whole tensors from shards: what a program makes of the whole, in buckets, on the ranks that want them."""

import gc
import threading
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from oarlock.checkpoint import CheckpointError, Shard, iter_full, merge
from oarlock.checkpoint.aoa import AOA, AOAError, TensorSpec
from process_group import run_ranks
from simulated_ranks import ThreadRanks, on_ranks

PROGRAMS = [
    "",
    "a^T -> x.a\nb -> _",
    "a, b -> ab, axis=0",
    "a -> even, rearrange='(i two) h -> two i h, two=2'\nv -> v, dtype=bfloat16",
    "a -> one, two, axis=1\na -> twice\nv -> p, pad=20",
]


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "Ranks", lambda group: group or ThreadRanks.alone())


def whole() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (10, 6), "b": (7, 6), "v": (13,), "s": (), "none": (0, 3)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()} | {"n": torch.arange(5)}


def spread(tensors: dict[str, Tensor], rank: int, size: int) -> dict[str, Tensor | Shard]:
    """Rows over all ranks; what has no rows is everywhere."""
    parts: dict[str, Tensor | Shard] = {}
    for name, tensor in tensors.items():
        if tensor.dim() == 0 or tensor.numel() == 0:
            parts[name] = tensor
            continue
        chunks = tensor.tensor_split(size)
        start = sum(len(chunk) for chunk in chunks[:rank])
        parts[name] = Shard.box(chunks[rank].clone(), tensor.shape, (start,) + (0,) * (tensor.dim() - 1))
    return parts


@settings(max_examples=30, deadline=None)
@given(
    text=st.sampled_from(PROGRAMS),
    size=st.integers(1, 4),
    max_bytes=st.sampled_from([16, 300, 10**6]),
    to=st.sampled_from([None, [0], [1, 2]]),
    dtype=st.sampled_from([None, torch.bfloat16]),
)
def test_any_program(text: str, size: int, max_bytes: int, to: list[int] | None, dtype: torch.dtype | None) -> None:
    to = to and [rank for rank in to if rank < size]
    expected = AOA(text).compile({name: TensorSpec.of(t) for name, t in whole().items()}, None).apply(whole())

    def work(ranks: ThreadRanks) -> None:
        state = spread(whole(), ranks.rank, size)
        found = dict(iter_full(state, text, max_bytes=max_bytes, group=ranks, to=to, dtype=dtype))  # type: ignore[arg-type]
        if to is not None and ranks.rank not in to:
            assert not found
            return
        assert list(found) == list(expected)
        for name, tensor in expected.items():
            cast = dtype if dtype and tensor.is_floating_point() else tensor.dtype
            assert found[name].dtype == cast
            assert torch.equal(found[name], tensor.to(cast)), name

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "Ranks", lambda group: group)
        on_ranks(size, work)


def test_one_process_alone() -> None:
    weight = torch.randn(4, 3)
    assert [name for name, _ in iter_full({"embed": weight, "head": weight})] == ["embed"]
    found = dict(iter_full({"embed": weight, "head": weight}, "head^T -> out"))
    assert list(found) == ["out"]
    assert torch.equal(found["out"], weight.T)
    assert found["out"].data_ptr() != weight.data_ptr()


def test_tensors_are_forgotten_as_they_are_given() -> None:
    state = {f"w{n}": torch.zeros(100) for n in range(7)}
    seen: list[weakref.ref[Tensor]] = []
    alive = 0
    for _, tensor in iter_full(state, max_bytes=1600):  # three tensors a bucket
        seen.append(weakref.ref(tensor))
        gc.collect()
        alive = max(alive, sum(ref() is not None for ref in seen))
        del tensor
    assert alive == 1
    assert len(seen) == 7


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"max_bytes": 3}, ValueError, "max_bytes must be >= 16, got 3"),
        ({"to": [1]}, ValueError, "to names rank 1, but the group has 1 ranks"),
        ({"aoa": "x -> y"}, AOAError, "x"),
        ({"aoa": "a, s -> y, fp8_block, block=5, dtype=float32"}, ValueError, "cannot be sent between ranks"),
    ],
)
def test_what_does_not_fit(options: Any, error: type[Exception], match: str) -> None:
    state = {"a": torch.zeros(10, 5), "s": torch.ones(2, 1)}
    with pytest.raises(error, match=match):
        iter_full(state, **options)


MIB = 1 << 20


def anonymous() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


def peak_memory() -> float:
    """What rank 0 needs beyond the state while 12 tensors of 8 MiB come in buckets of 24 MiB, from three ranks."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    state = {
        f"w{n}": Shard.box(torch.full((1024 // size, 2048), float(n)), (1024, 2048), (rank * 1024 // size, 0))
        for n in range(12)
    }
    dist.barrier()
    dict(iter_full({"small": torch.ones(3)}))
    base, peaks, done = anonymous(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            peaks[0] = max(peaks[0], anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for name, tensor in iter_full(state, max_bytes=24 * MIB, to=[0]):
        assert bool((tensor == float(name[1:])).all())
    done.set()
    watcher.join()
    dist.destroy_process_group()
    return (peaks[0] - base) / MIB


def test_memory_is_bounded_by_a_bucket_and_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(MIB))  # what is freed goes back to the system at once
    first, *others = run_ranks(4, peak_memory, timeout=120)
    assert first <= 24 + 8 + 4, "and some MiB of the interpreter and gloo"
    assert max(others) <= 3 + 4, "what is on its way"


def test_a_rank_that_fails(simulated: None) -> None:
    def work(ranks: ThreadRanks) -> str:
        state = spread(whole(), ranks.rank, 2)
        if ranks.rank:
            state["a"] = torch.zeros(3)
        try:
            dict(iter_full(state, group=ranks))  # type: ignore[arg-type]
        except (CheckpointError, ValueError) as error:
            return str(error)
        raise AssertionError("nothing was raised")

    for message in on_ranks(2, work):
        assert "'a' has shape [3] on rank 1 and [10, 6] on rank 0" in message
