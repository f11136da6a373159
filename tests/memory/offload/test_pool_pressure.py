"""Where a pool that all tensors live in cannot meet a request, saved activations leave it: real runs at the limit."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from oarlock.memory import OutOfMemoryError, Pool, empty
from oarlock.memory.offload import HostTier
from oarlock.memory.offload.apply import Applied

PAGE = 64 << 10


def run(shim: Path, policy: str, capacity: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).parent / "pool_run.py"), policy, str(capacity)],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "OARLOCK_SHIM": str(shim), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_run_that_fails_under_a_cap_goes_on_by_eviction_with_the_same_gradients(shim: Path) -> None:
    free = run(shim, "keep", 1 << 30)
    cap = int(0.7 * free["peak"]) // PAGE * PAGE
    failed = run(shim, "keep", cap)
    assert "out of memory" in failed["error"]
    assert failed["foreign"] > 0
    evicted = run(shim, "evict", cap)
    assert evicted.get("error") is None
    assert evicted["digests"] == free["digests"]
    assert evicted["evicted"] > 0.1 * free["peak"]
    assert evicted["reserved"] <= cap
    assert evicted["foreign"] == 0  # what was there before is asked only when nothing can leave
    assert evicted["tier"] == 0


def test_a_plan_that_was_made_for_less_is_helped_by_eviction(shim: Path) -> None:
    free = run(shim, "keep", 1 << 30)
    planned = run(shim, "plan", int(0.7 * free["peak"]) // PAGE * PAGE)
    assert planned.get("error") is None
    assert planned["digests"] == free["digests"]
    assert planned["pressure"] > 0
    assert planned["evicted"] > 0


class Square(torch.autograd.Function):
    """Saves its input, and puts its result into a pool."""

    pool: Pool

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.mul(x, x, out=empty(Square.pool, x.shape))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grads[0]


class Squares(nn.Module):
    def __init__(self, num: int) -> None:
        super().__init__()
        self.num = num

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.num):
            x = Square.apply(x)
        return x


def test_the_inputs_of_the_request_stay_and_the_former_callback_comes_back() -> None:
    """Five results of 8 pages under 20 pages: the input of each operation cannot leave, the others do."""
    shape = (8 * PAGE // 4,)
    torch.manual_seed(0)
    x = 1 + 0.1 * torch.rand(shape)
    leaf = x.clone().requires_grad_()
    expected = torch.autograd.grad((leaf**32).sum(), leaf)[0]
    asked: list[int] = []

    def other(size: int, stream: int) -> bool:
        asked.append(size)
        return False

    with Pool(20 * PAGE, driver="host", page_bytes=PAGE) as pool, HostTier() as tier:
        Square.pool = pool
        pool.set_pressure(other)
        model = Squares(5)
        with pytest.raises(OutOfMemoryError):
            model(leaf)
        assert asked == [8 * PAGE]
        with Applied(model, tier=tier, pool=pool) as applied:
            out = model(leaf)
            assert applied.evicted_bytes == 3 * 8 * PAGE
            out.sum().backward()
        torch.testing.assert_close(leaf.grad, expected)
        assert asked == [8 * PAGE]
        assert pool.pressure is other
        del out
        assert pool.stats().live_bytes == 0
        assert tier.used_bytes == 0


def test_what_the_program_holds_is_not_sent_and_the_former_callback_is_asked() -> None:
    shape = (8 * PAGE // 4,)
    asked: list[int] = []
    with Pool(20 * PAGE, driver="host", page_bytes=PAGE) as pool, HostTier() as tier:
        Square.pool = pool
        pool.set_pressure(lambda size, stream: bool(asked.append(size)))
        leaf = torch.ones(shape, requires_grad=True)
        held = [Square.apply(leaf)]
        with Applied(nn.Identity(), tier=tier, pool=pool) as applied:
            held.append(Square.apply(held[-1]))
            with pytest.raises(OutOfMemoryError):
                Square.apply(held[-1])
            assert applied.evicted_bytes == 0
        assert asked == [8 * PAGE]
        held.clear()
