"""A second tier that is full, broken or closed: one clear error, nothing lost, nothing left; then all works again."""

import ctypes
import gc
import re
import resource
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oarlock import _native
from oarlock.memory import OutOfMemoryError, Pool, empty
from oarlock.memory.offload import Applied, FileTier, HostTier, OptimizerTier, Tier, make_plan, profile
from oarlock.memory.offload.session import Schedule, Session
from oarlock.memory.offload.tiers import Copying, Place

CPU = torch.device("cpu")
PAGE = 64 << 10


class Everything(dict[Any, Any]):
    """One choice for every key."""

    def __init__(self, choice: str) -> None:
        super().__init__()
        self._choice = choice

    def get(self, key: Any, default: Any = None) -> Any:
        return self._choice


def grads(model: nn.Module, loss: Callable[[], Tensor]) -> list[Tensor]:
    model.zero_grad()
    loss().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) > 0 and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


class Square(torch.autograd.Function):
    """Saves its input, and puts its result into a pool."""

    pool: Pool

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.mul(x, x, out=empty(Square.pool, x.shape))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grads[0]


class Squares(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(5):
            x = Square.apply(x)
        return x


@contextmanager
def files_of(num_bytes: int) -> Iterator[None]:
    """No file of this process may be longer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Flaky(HostTier):
    """A write that `fails` is put off to its end; what it leaves in its place is not what was to be written."""

    fails = False

    def write(self, place: Place, bytes_N: Tensor) -> Copying:
        copying = super().write(place, bytes_N * 0 if self.fails else bytes_N)
        self.last = copying
        return Broken(copying) if self.fails else copying


class Broken:
    def __init__(self, copying: Copying) -> None:
        self._copying = copying

    def is_done(self) -> bool:
        return self._copying.is_done()

    def wait(self) -> None:
        self._copying.wait()
        raise OSError(5, "Input/output error")

    def cancel(self, *, wait: bool = True) -> None:
        self._copying.cancel(wait=wait)


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)))


@pytest.fixture
def loss(model: nn.Module) -> Callable[[], Tensor]:
    x = torch.randn(256, 64)
    return lambda: model(x).square().mean()


def all_sent(model: nn.Module, tier: Tier) -> Session:
    return Session(model, device=CPU, tier=tier, min_bytes=1, schedule=Schedule(choices=Everything("offload")))


def test_a_full_file_is_one_error_and_serves_again(model: nn.Module, loss: Callable[[], Tensor]) -> None:
    expected = grads(model, loss)
    with FileTier() as tier, Applied(model, min_bytes=1) as free:
        grads(model, loss)
        for _ in range(2):
            with files_of(300_000):
                full = r"the file of the second tier cannot take .* more"
                waited_for = Session(model, device=CPU, tier=tier, min_bytes=1, at_once=True)
                with pytest.raises(OutOfMemoryError, match=full), waited_for:
                    grads(model, loss)
                capped = Applied(model, cap=int(0.8 * free.peak), tier=tier, min_bytes=1)
                with pytest.raises(OutOfMemoryError, match=rf"beyond the cap of .*, and {full}"), capped:
                    grads(model, loss)
            gc.collect()
            assert tier.used_bytes == 0
        with Applied(model, cap=int(0.8 * free.peak), tier=tier, min_bytes=1) as run:
            model.zero_grad(set_to_none=True)
            assert equal(grads(model, loss), expected)
        assert run.evicted_bytes > 0
        assert tier.used_bytes == 0


def test_a_copy_that_failed_is_never_read(model: nn.Module, loss: Callable[[], Tensor]) -> None:
    """The graph may run again: what was not copied is still there."""
    expected = grads(model, loss)
    with Flaky() as tier:
        with all_sent(model, tier):
            tier.fails = True
            value = loss()
            tier.fails = False
            tier.last.wait()  # of a copy that is still on its way nobody asks: what it copies is there
            num_errors = 0
            while True:
                model.zero_grad()
                try:
                    value.backward(retain_graph=True)
                    break
                except OSError:
                    num_errors += 1
            assert num_errors > 0
            assert equal([p.grad for p in model.parameters() if p.grad is not None], expected)
            del value
        assert tier.used_bytes == 0


def test_a_pool_whose_pressure_meets_a_full_tier_asks_who_was_there_before() -> None:
    shape = (8 * PAGE // 4,)
    leaf = (1 + 0.1 * torch.rand(shape)).requires_grad_()
    expected = torch.autograd.grad((leaf**32).sum(), leaf)[0]
    spare: list[int] = []
    with Pool(20 * PAGE, driver="host", page_bytes=PAGE) as pool, HostTier(capacity=1) as full, HostTier() as tier:
        Square.pool = pool
        model = Squares()
        for others in (False, True):
            pool.set_pressure(lambda size, stream, others=others: others and bool(spare.append(size)))
            with Applied(model, tier=full, pool=pool), pytest.raises(OutOfMemoryError) as caught:
                model(leaf)
            assert "the second tier has no room" in str(caught.value.__cause__)
            caught.value.__traceback__ = None
            del caught
            gc.collect()
            pool.check()
            assert pool.stats().live_bytes == 0
        assert spare  # it was asked, too
        with Applied(model, tier=tier, pool=pool) as run:
            model(leaf).sum().backward()
        assert run.evicted_bytes > 0
        torch.testing.assert_close(leaf.grad, expected)
        gc.collect()
        assert pool.stats().live_bytes == full.used_bytes == tier.used_bytes == 0


def test_an_error_of_the_pressure_holds_nothing_and_is_no_other_error_s_cause() -> None:
    """Requests of torch's allocator go to the core, and nobody asks the pool for the error of its callback."""

    class Held:
        pass

    refs: list[weakref.ref[Held]] = []
    asked: list[int] = []

    def ask(pool: Pool) -> None:
        held = Held()
        refs.append(weakref.ref(held))
        _native.library().oarlock_pool_malloc(pool._handle, PAGE, 0, 0, ctypes.byref(ctypes.c_uint64()))

    def fail(size: int, stream: int) -> bool:
        asked.append(size)
        raise KeyError(size)

    with Pool(4 * PAGE, driver="sim", page_bytes=PAGE) as pool:
        pool.malloc(4 * PAGE)
        pool.set_pressure(fail)
        ask(pool)
        assert asked == [PAGE]
        assert refs[0]() is None
        pool._callback, pool.pressure = type(pool._callback)(), None
        pool._library.oarlock_pool_set_pressure(pool._handle, pool._callback, None)
        with pytest.raises(OutOfMemoryError) as caught:
            pool.malloc(PAGE)
        assert caught.value.__cause__ is None


@pytest.mark.parametrize("kind", [HostTier, FileTier])
def test_a_closed_tier_is_an_error_and_no_wait(kind: type[Tier], model: nn.Module, loss: Callable[[], Tensor]) -> None:
    with kind() as tier, Session(model, device=CPU, tier=tier, min_bytes=1, at_once=True):
        value = loss()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            value.backward()
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert "the second tier is closed" in str(errors[0])


def test_plans_stay_within_a_small_tier(model: nn.Module, loss: Callable[[], Tensor]) -> None:
    expected = grads(model, loss)
    sent: list[int] = []
    for capacity in (None, 400_000, 4096):
        with HostTier(capacity=capacity) as tier:
            measured = profile(model, lambda: grads(model, loss), tier=tier, min_bytes=1 << 10)
            plan = make_plan(measured, "70%")
            with plan.apply(model, tier=tier) as run:
                assert equal(grads(model, loss), expected)
            assert run.peak <= plan.budget
            sent.append(plan.outcome.out_bytes)
    assert sent[0] > sent[1] >= sent[2] == 0


def test_states_survive_a_step_whose_tier_fails() -> None:
    layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    optimizer = torch.optim.Adam(layers.parameters())
    x = torch.randn(8, 64)
    with Flaky() as tier:
        tiered = OptimizerTier(optimizer, tier, part_bytes=64 * 64 * 4)
        layers(x).sum().backward()
        tiered.step()
        tiered.load()
        before = [{name: value.clone() for name, value in state.items()} for state in optimizer.state.values()]
        tier.fails = True
        with pytest.raises(OSError, match="Input/output error"):
            tiered.send()
        tier.fails = False
        tiered.send()
        tiered.load()
        for state, old in zip(optimizer.state.values(), before, strict=True):
            for name, value in old.items():
                assert torch.equal(state[name], value), name
        assert tier.used_bytes == 0


def test_the_least_budget_that_is_named_is_met(model: nn.Module, loss: Callable[[], Tensor]) -> None:
    with HostTier(out_rate=5e7, in_rate=5e7) as tier:
        measured = profile(model, lambda: grads(model, loss), tier=tier, min_bytes=1 << 10)
        for budget in (1, "10%", "30%"):
            with pytest.raises(OutOfMemoryError) as caught:
                make_plan(measured, budget)
            found = re.search(r"\(([\d,]+) bytes\) of it are needed", str(caught.value))
            assert found is not None
            plan = make_plan(measured, int(found[1].replace(",", "")))
            with plan.apply(model, tier=tier) as run:
                grads(model, loss)
            assert run.peak <= plan.budget
