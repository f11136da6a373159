"""On small graphs no plan is much better than the one that is found: a mixed-integer program bounds all of them."""

import dataclasses
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oarlock.memory.offload import HostTier, Profile, make_plan, profile
from oarlock.memory.offload.simulate import Simulator

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from _offload_bound import least_seconds


class Layer(nn.Module):
    def __init__(self, width: int, factor: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, factor * width), nn.Linear(factor * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


@pytest.fixture(scope="module")
def measured() -> Profile:
    """Of a step, with a clock of its own: 10 ms for an event, 4 s for all bytes over the link; the same everywhere."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(16, factor) for factor in (2, 4, 1, 4)))
    x = torch.randn(512, 16)

    def step() -> None:
        model.zero_grad()
        model(x).square().sum().backward()

    with HostTier() as tier:
        found = profile(model, step, tier=tier, min_bytes=1 << 10, repeats=1)
    rate = found.saved_bytes / 4.0
    return dataclasses.replace(found, clock=np.arange(len(found.clock)) * 0.01, out_rate=rate, in_rate=rate)


@pytest.mark.parametrize("share", [90, 80, 70, 68])
def test_the_plan_is_close_to_the_best_of_all_plans_and_to_their_bound(measured: Profile, share: int) -> None:
    plan = make_plan(measured, f"{share}%")
    simulator = Simulator(measured)
    inside = {g for region in measured.regions for g in region.inside}
    best = float("inf")
    for choices in itertools.product(
        *(("keep", "offload", "recompute") if g in inside else ("keep", "offload") for g in range(len(measured.groups)))
    ):
        again = [
            r for r, region in enumerate(measured.regions) if any(choices[g] == "recompute" for g in region.inside)
        ]
        outcome = simulator.run(choices, again, plan.budget)
        if outcome.peak <= plan.budget:
            best = min(best, outcome.seconds)
    assert plan.outcome.seconds <= 1.05 * best
    bound = least_seconds(measured, plan.budget, 10.0)
    assert bound <= best * (1 + 1e-9)
    assert best <= 1.15 * bound, "the bound leaves out the workspace of computing again"


def test_everything_kept_is_bounded_by_itself() -> None:
    model = nn.Sequential(Layer(16, 2), Layer(16, 2))
    x = torch.randn(64, 16)
    with HostTier() as tier:
        measured = profile(model, lambda: model(x).sum().backward(), tier=tier, min_bytes=1 << 8, repeats=1)
    kept = Simulator(measured).run(("keep",) * len(measured.groups), ())
    assert least_seconds(measured, kept.peak) == pytest.approx(kept.seconds)
    assert make_plan(measured, kept.peak * 2).outcome.seconds == pytest.approx(kept.seconds)
