"""A copy that nobody needs any more holds no memory: it never begins, or ends early; others are complete."""

import dataclasses
import gc
import random
import sys
import threading
import time
import weakref

import pytest
import torch
from torch import Tensor, nn

from oarlock.memory.offload import HostTier, make_plan, profile
from oarlock.memory.offload.link import CHUNK, Link, Transfer
from oarlock.memory.offload.session import Choice
from oarlock.memory.offload.simulate import Simulator


class Memory:
    """What a copy holds."""

    def __init__(self) -> None:
        self.moved: list[tuple[int, int]] = []

    def move(self, start: int, stop: int) -> None:
        self.moved.append((start, stop))


def test_a_cancelled_copy_in_the_queue_never_begins_and_holds_nothing() -> None:
    link = Link("test", rate=1e6)
    first, second, third = Memory(), Memory(), Memory()
    before = link.send(100_000, first.move)  # 0.1 s
    cancelled, after = link.send(100_000, second.move), link.send(1000, third.move)
    held = weakref.ref(second)
    moved = second.moved
    del second
    cancelled.cancel()
    assert held() is None
    after.wait()
    assert moved == []
    assert first.moved == [(0, 100_000)]
    assert third.moved == [(0, 1000)]
    assert not cancelled.is_done()
    assert after.ended - before.ended < 0.05, "the link has no time for what was cancelled"
    link.close()


def test_a_copy_that_is_cancelled_meanwhile_ends_behind_its_piece() -> None:
    link = Link("test", rate=2 * CHUNK)  # two pieces a second
    memory = Memory()
    held, moved = weakref.ref(memory), memory.moved
    began = time.perf_counter()
    transfer = link.send(20 * CHUNK, memory.move)
    del memory
    while not moved:
        time.sleep(0.001)
    transfer.cancel()
    assert held() is None
    assert time.perf_counter() - began < 0.4
    assert len(moved) == 1
    link.close()


def test_waits_of_less_than_a_microsecond_end() -> None:
    """Copies that take about as long as the link's rate asks for, in a thread that is interrupted all the time."""
    over = threading.Event()
    others = [threading.Thread(target=lambda: [None for _ in iter(over.is_set, True)]) for _ in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for other in others:
            other.start()
        link = Link("x", rate=4e9)
        for _ in range(10_000):
            link.send(8192, lambda start, stop: None)
        closing = threading.Thread(target=link.close, daemon=True)
        closing.start()
        closing.join(60)
        assert not closing.is_alive()
    finally:
        over.set()
        sys.setswitchinterval(interval)


def test_cancelling_may_race_with_running() -> None:
    random.seed(0)
    link = Link("test")
    memories: list[weakref.ref[Memory]] = []
    copies: list[tuple[Transfer, list[tuple[int, int]]]] = []
    lengths = [3 * CHUNK + 5, 7, CHUNK]
    begun = 0
    for number in range(3000):
        memory = Memory()
        memories.append(weakref.ref(memory))
        transfer = link.send(lengths[number % 3], memory.move)
        copies.append((transfer, memory.moved))
        del memory
        if number % 2:
            if random.random() < 0.5:
                time.sleep(random.random() * 5e-5)
            was_done = transfer.is_done()
            threads = [threading.Thread(target=transfer.cancel) for _ in range(2)] if number % 100 == 1 else []
            for thread in threads:
                thread.start()
            transfer.cancel(wait=number % 4 == 1)
            for thread in threads:
                thread.join(10)
            if number % 4 == 1:
                assert memories[-1]() is None
            begun += bool(copies[-1][1]) and not was_done
    link.close()
    assert all(ref() is None for ref in memories)
    for number, (transfer, moved) in enumerate(copies):
        whole = [(start, min(start + CHUNK, transfer.num_bytes)) for start in range(0, transfer.num_bytes, CHUNK)]
        assert moved == whole[: len(moved)]
        if not number % 2:
            assert transfer.is_done()
            assert moved == whole


class Block(nn.Module):
    """Cheap steps whose storages are all of one size; each takes a while."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.002)
        return torch.tanh(self.linear(torch.sin(x)))


@pytest.mark.parametrize("rate", [2e6, 2e7])
def test_plans_that_only_send_reach_their_peak_on_a_slow_link(rate: float) -> None:
    model = nn.Sequential(*(Block() for _ in range(6)))
    x = torch.randn(512, 64)

    def step() -> None:
        model.zero_grad()
        model(x).square().sum().backward()

    step()
    expected = [p.grad.clone() for p in model.parameters()]
    with HostTier(out_rate=rate, in_rate=rate) as tier:
        measured = profile(model, step, tier=tier, min_bytes=1 << 10)
        simulator = Simulator(measured)
        plan = make_plan(measured, "95%")
        num_groups = len(measured.groups)
        late = 0
        for stride in (1, 2, 3):
            choices: tuple[Choice, ...] = tuple("keep" if g % stride else "offload" for g in range(num_groups))
            outcome = simulator.run(choices, (), plan.budget)
            late += choices.count("offload") - len(outcome.releases)
            sent = dataclasses.replace(plan, choices=choices, regions=(), outcome=outcome, budget=1 << 40)
            with sent.apply(model, tier=tier) as run:
                step()
            assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), expected, strict=True))
            assert outcome.peak * 0.98 <= run.peak <= outcome.peak * 1.002
            assert tier.used_bytes == 0
        assert late > 0, "the link was fast enough for everything: nothing was needed before its copy had begun"


def test_a_graph_that_is_dropped_takes_its_copies_along() -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    x = torch.randn(512, 64)
    with HostTier(out_rate=1e6) as tier:  # 0.13 s for each
        measured = profile(model, lambda: model(x).sum().backward(), tier=tier, min_bytes=1 << 10, repeats=1)
        simulator = Simulator(measured)
        outcome = simulator.run(("offload",) * len(measured.groups), ())
        plan = make_plan(measured, "100%")
        everything = dataclasses.replace(plan, choices=("offload",) * len(measured.groups), outcome=outcome)
        with everything.apply(model, tier=tier) as run:
            before = run.meter.live
            graph = model(x)
            assert run.meter.live >= before + 2 * x.nbytes
            del graph
            gc.collect()
            assert run.meter.live < before + x.nbytes  # the copy that has begun ends soon
            deadline = time.perf_counter() + 5
            while run.meter.live > before and time.perf_counter() < deadline:
                time.sleep(0.001)
            assert run.meter.live == before
            assert tier.used_bytes == 0
