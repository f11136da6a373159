"""Random routing: storages planned at a quantile of their sizes fit the steps to come; eviction does the rest."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oarlock.memory.offload import HostTier, fit, profile
from oarlock.memory.offload.quantile import at_quantile
from oarlock.memory.offload.simulate import Simulator


class Experts(nn.Module):
    """Each token goes to one of three experts, as its row of `route` says."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(32, 32)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(3))
        self.route = torch.zeros(0)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.before(x))
        y = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            mine = (self.route == number).nonzero().squeeze(-1)
            if len(mine):
                y = y.index_add(0, mine, expert(h[mine]))
        return h + y


class Run:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(Experts(), Experts())
        self.x = torch.randn(512, 32)
        self.random = torch.Generator().manual_seed(1)

    def reroute(self) -> None:
        for layer in self.model:
            share = torch.rand(3, generator=self.random) + 0.2
            layer.route = torch.multinomial(share, len(self.x), True, generator=self.random)

    def __call__(self) -> list[Tensor]:
        self.model.zero_grad()
        self.model(self.x).square().sum().backward()
        return [p.grad.clone() for p in self.model.parameters() if p.grad is not None]


def test_sizes_are_at_the_quantile_of_each_storage() -> None:
    run = Run()
    profiles = []
    with HostTier() as tier:
        for _ in range(3):
            run.reroute()
            profiles.append(profile(run.model, run, tier=tier, min_bytes=1 << 10, repeats=1))
    sizes = [{group.key: group.num_bytes for group in each.groups} for each in profiles]
    for quantile, of_all in ((1.0, max), (0.5, np.median), (0.0, min)):
        merged = at_quantile(profiles, quantile)
        for group in merged.groups:
            assert group.num_bytes == of_all([each.get(group.key, 0) for each in sizes])
        living: dict[int, int] = {}  # each storage dies with as many bytes as it was made of
        for number, delta in zip(merged.numbers.tolist(), merged.deltas.tolist(), strict=True):
            if number in living:
                assert living.pop(number) == -delta
            elif delta > 0:
                living[number] = delta
    kept = [Simulator(each).run(("keep",) * len(each.groups), ()) for each in [at_quantile(profiles, 1.0), *profiles]]
    assert kept[0].peak >= max(each.peak for each in kept[1:])
    assert kept[0].seconds >= max(each.seconds for each in kept[1:]) * (1 - 1e-9)
    assert at_quantile(profiles[:1], 0.3) is profiles[0]


@pytest.mark.parametrize("budget", ["85%", "70%"])
def test_thirty_steps_of_random_routing_stay_within_a_quantile_plan(budget: str) -> None:
    run = Run()
    calls = 0

    def step() -> None:
        nonlocal calls
        if calls % 4 == 0:  # a profile calls the same step four times
            run.reroute()
        calls += 1
        run()

    with HostTier(out_rate=2e8, in_rate=2e8) as tier:
        plan = fit(run.model, step, budget=budget, tier=tier, min_bytes=1 << 10, num_profiles=6, quantile=0.95)
        evicted = []
        for _ in range(30):
            run.reroute()
            expected = run()
            with plan.apply(run.model, tier=tier) as applied:
                found = run()
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
            assert applied.peak <= plan.budget
            evicted.append(applied.evicted_bytes)
            assert tier.used_bytes == 0
        assert sum(each > 0 for each in evicted) <= 3
