"""Steps that differ: a plan for a large one serves the smaller ones, and what is beyond it leaves by eviction."""

import pytest
import torch
from torch import Tensor, nn

from oarlock.memory.offload import HostTier, fit


class Experts(nn.Module):
    """Two dense layers around experts, each a module; how many tokens each gets is told from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(32, 32), nn.Linear(32, 32)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(3))
        self.loads = [1.0, 1.0, 1.0]

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.before(x))
        total = sum(self.loads)
        counts = [int(len(h) * load / total) for load in self.loads]
        counts[-1] = len(h) - sum(counts[:-1])
        parts = [expert(part) for expert, part in zip(self.experts, h.split(counts), strict=True) if len(part)]
        return self.after(torch.cat(parts) + h)


def test_a_plan_for_a_large_step_serves_smaller_and_larger_ones() -> None:
    model = nn.Sequential(Experts(), Experts())
    lengths = iter(length for length in (300, 512, 400) for _ in range(4))
    x = torch.randn(640, 32)

    def step(length: int) -> list[Tensor]:
        model.zero_grad()
        model(x[:length]).square().sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    with HostTier(out_rate=2e8, in_rate=2e8) as tier:
        plan = fit(
            model, lambda: step(next(lengths)), budget="75%", tier=tier, min_bytes=1 << 10, num_profiles=3, quantile=1.0
        )
        for length, loads in ((512, (1.0, 1.0, 1.0)), (300, (5.0, 0.0, 1.0)), (512, (0.0, 0.0, 1.0)), (560, (2, 1, 1))):
            for layer in model:
                layer.loads = list(loads)
            expected = step(length)
            with plan.apply(model, tier=tier) as run:
                found = step(length)
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
            assert run.peak <= plan.budget
            assert tier.used_bytes == 0


def test_a_quantile_is_a_share() -> None:
    with HostTier() as tier, pytest.raises(ValueError, match=r"quantile = 2: .* within \[0, 1\]"):
        fit(nn.Tanh(), lambda: None, budget=1, tier=tier, quantile=2)
