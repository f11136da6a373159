"""Where the cap is reached, the copies of all that has to leave are begun at once, and none is reused too early."""

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oarlock.memory import OutOfMemoryError
from oarlock.memory.offload import Applied, HostTier
from oarlock.memory.offload.tiers import Copying, Place

WIDTH = 1 << 14  # float32: 64 KiB for each storage


class Noted:
    def __init__(self, copying: Copying, log: list[str]) -> None:
        self._copying, self._log = copying, log

    def wait(self) -> None:
        self._log.append("wait")
        self._copying.wait()

    def is_done(self) -> bool:
        return self._copying.is_done()

    def cancel(self, *, wait: bool = True) -> None:
        self._copying.cancel(wait=wait)


class NotedTier(HostTier):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.log: list[str] = []

    def write(self, place: Place, bytes_N: Tensor) -> Copying:
        self.log.append("write")
        return Noted(super().write(place, bytes_N), self.log)


class Exps(nn.Module):
    """Saves a storage for each call; then makes one that is as large as several of them."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(6):
            x = x.exp() * 0.1
        return x


def run(tier: HostTier | None, cap: int | None) -> tuple[list[Tensor], Applied]:
    model = Exps()
    x = torch.linspace(0, 1, WIDTH).requires_grad_()
    with Applied(model, tier=tier, cap=cap, min_bytes=1 << 10) as applied:
        y = model(x)
        if isinstance(tier, NotedTier):
            assert tier.log == []
        large = torch.ones(5, WIDTH)
        assert large.sum() == 5 * WIDTH
        del large
        y.sum().backward()
    assert x.grad is not None
    return [x.grad], applied


def test_four_copies_are_begun_before_one_is_waited_for() -> None:
    expected, free = run(None, None)
    at_large = 4 * WIDTH * (6 + 1 + 5) + 64  # six saved, the result, the large one, its sum
    with NotedTier(out_rate=2e6) as tier:
        found, applied = run(tier, at_large - 4 * 4 * WIDTH)
        assert tier.log[:4] == ["write"] * 4
        assert tier.log[4] == "wait"
        assert tier.log.count("write") == 4, "no more leaves than the bytes need"
        assert applied.evicted_bytes == 4 * 4 * WIDTH
        assert applied.peak <= at_large - 4 * 4 * WIDTH
        assert applied.peak < free.peak
        assert torch.equal(found[0], expected[0])
        assert tier.used_bytes == 0


def test_a_tier_that_is_full_keeps_what_has_left_and_says_so() -> None:
    cap = 4 * WIDTH * 8 + 64
    with NotedTier(out_rate=2e7, capacity=2 * 4 * WIDTH) as tier:
        with pytest.raises(OutOfMemoryError, match=r"beyond the cap of .* and the second tier has no room"):
            run(tier, cap)
        assert tier.log.count("write") == 2
        gc.collect()  # the traceback's frames
        assert tier.used_bytes == 0
        expected, _ = run(None, None)
        tier.log.clear()
        found, applied = run(tier, cap + 2 * 4 * WIDTH)  # two are enough
        assert applied.evicted_bytes == 2 * 4 * WIDTH
        assert torch.equal(found[0], expected[0])
