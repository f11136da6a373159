"""The simulator counts each event of a step once: its pieces against every single event, and against measured steps."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oarlock.memory.offload import HostTier, Profile, make_plan, profile
from oarlock.memory.offload.session import Choice
from oarlock.memory.offload.simulate import Simulator


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gate = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x * torch.sigmoid(self.gate(h)) + F.dropout(self.down(F.gelu(self.up(h))), 0.1)


class Steps:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(Block(32) for _ in range(4)))
        self.x = torch.randn(256, 32)
        self.tier = HostTier()
        self()
        self.profile: Profile = profile(self.model, self, tier=self.tier, min_bytes=1 << 10)

    def __call__(self) -> None:
        torch.manual_seed(3)
        self.model.zero_grad()
        self.model(self.x).square().sum().backward()


@pytest.fixture(scope="module")
def steps() -> Steps:
    return Steps()


def test_pieces_are_the_most_of_their_events(steps: Steps) -> None:
    """With everything kept: what lives at each event is what lived there in the measured step, and what it had dropped
    and will need."""
    measured = steps.profile
    simulator = Simulator(measured)
    choices: tuple[Choice, ...] = ("keep",) * len(measured.groups)
    needs, ends = simulator.needs(choices, [])
    found = simulator.curve(choices, (), [], ends)
    live = measured.static_bytes + np.cumsum(measured.deltas)
    for group, need in zip(measured.groups, needs, strict=True):
        if group.save is not None and need < len(measured.moments):
            live[group.death : measured.moments[need][0]] += group.num_bytes
    cuts = [*simulator._cuts, len(live)]
    most = [live[begin:end].max() for begin, end in itertools.pairwise(cuts)]
    assert found[1:].tolist() == most[1:]
    assert found[0] >= most[0]
    assert measured.deltas[simulator._cuts].min() < 0, "no piece begins where something dies"


def test_a_peak_behind_a_death_counts_what_died_once(steps: Steps) -> None:
    measured = steps.profile
    again = {
        ("0", 0): (0, 3),
        ("2.norm", 0): (4,),
        ("3.norm", 0): (3, 4),
        ("3.gate", 0): (0,),
    }
    choices: list[Choice] = ["recompute" if g.key[3] in again.get(g.key[1:3], ()) else "keep" for g in measured.groups]
    assert choices.count("recompute") == 6
    regions = tuple(r for r, region in enumerate(measured.regions) if region.key[1] in ("0", "2.norm", "3"))
    outcome = Simulator(measured).run(choices, regions)
    plan = dataclasses.replace(
        make_plan(measured, "100%"), choices=tuple(choices), regions=regions, outcome=outcome, budget=1 << 40
    )
    with plan.apply(steps.model, tier=steps.tier) as run:
        steps()
    assert run.peak == pytest.approx(outcome.peak, rel=2e-3)
