"""Any choices for any regions: the measured peak is the simulated one, gradients are bitwise those with all kept."""

import dataclasses
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from oarlock.memory.offload import HostTier, checkpoint, make_plan, profile
from oarlock.memory.offload.session import Choice
from oarlock.memory.offload.simulate import Simulator


class Block(nn.Module):
    """In autocast, an input of `up` is not saved, but its cast: only computing `up` again needs it."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), 0.1)


class Late(nn.Module):
    """Of what the inner part saves, a little is needed early and much is needed late; its input is not saved."""

    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            many = torch.exp(x * 0.01 + 0.1)
            return torch.exp(many.cumsum(0).mean(0, keepdim=True) * 0.01)

    def __init__(self) -> None:
        super().__init__()
        self.inner = Late.Inner()

    def forward(self, x: Tensor) -> Tensor:
        return x * 0.9 + self.inner(x + 0.1)


class Saving(nn.Module):
    """Blocks of which some are checkpointed by the program itself."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.blocks, self.how = nn.ModuleList(Block() for _ in range(4)), how

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        for number, block in enumerate(self.blocks):
            if number % 2 == 0:
                x = block(x)
            elif self.how == "ours":
                x = checkpoint(block, x)
            else:
                x = torch_checkpoint(block, x, use_reentrant=self.how == "reentrant")
        return x


MODELS: dict[str, Callable[[], nn.Module]] = {
    "blocks": lambda: nn.Sequential(*(Block() for _ in range(3))),
    "autocast": lambda: nn.Sequential(*(Block() for _ in range(4))),
    "late": lambda: nn.Sequential(nn.Linear(32, 32), *(Late() for _ in range(3))),
    "ours": lambda: Saving("ours"),
    "reentrant": lambda: Saving("reentrant"),
    "not reentrant": lambda: Saving("not reentrant"),
}


@pytest.mark.parametrize("name", MODELS)
def test_measured_peaks_are_the_simulated_ones(name: str) -> None:
    torch.manual_seed(0)
    draw = random.Random(0)
    model, x = MODELS[name](), torch.randn(128, 32)

    def step() -> None:
        torch.manual_seed(5)
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "autocast"):
            loss = model(x).float().square().mean()
        loss.backward()

    step()
    expected = [p.grad for p in model.parameters()]
    with HostTier() as tier:
        measured = profile(model, step, tier=tier, min_bytes=1)
        simulator, free = Simulator(measured), make_plan(measured, "200%")
        for number in range(40):
            regions: list[int] = []
            for r in draw.sample(range(len(measured.regions)), draw.randint(1, len(measured.regions))):
                region, chosen = measured.regions[r], [measured.regions[q] for q in regions]
                if not any(region.begin < each.end and each.begin < region.end for each in chosen):
                    regions.append(r)
            choices: list[Choice] = ["keep"] * len(measured.groups)
            for g in (g for r in regions for g in measured.regions[r].inside):
                choices[g] = "recompute" if draw.random() < 0.8 else "keep"
            if number % 2:
                sent = [g for g, choice in enumerate(choices) if choice == "keep" and draw.random() < 0.3]
                for g in sent:
                    choices[g] = "offload"
            outcome = simulator.run(choices, regions)
            plan = dataclasses.replace(
                free, choices=tuple(choices), regions=tuple(regions), outcome=outcome, budget=1 << 40
            )
            model.zero_grad(set_to_none=True)
            with plan.apply(model, tier=tier, evict=False) as run:
                step()
            assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), expected, strict=True))
            assert run.peak == pytest.approx(outcome.peak, rel=5e-4), (number, choices, regions)
            assert tier.used_bytes == 0
