"""A plan is followed to the byte: planned peaks are measured, budgets are kept, gradients stay as they are."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oarlock.memory import OutOfMemoryError
from oarlock.memory.offload import Applied, HostTier, make_plan, parse_budget, profile


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gate = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x * torch.sigmoid(self.gate(h)) + F.dropout(self.down(F.gelu(self.up(h))), 0.1)


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(*(Block(32) for _ in range(4)))


def make_step(model: nn.Module) -> tuple[list[Tensor], Callable[[], None]]:
    x = torch.randn(256, 32)

    def step() -> None:
        torch.manual_seed(3)
        model.zero_grad()
        model(x).square().sum().backward()

    step()
    return [p.grad.clone() for p in model.parameters()], step


@pytest.mark.parametrize("rate", [2e6, 5e7, 5e9])
def test_measured_peaks_are_the_planned_ones_and_gradients_are_bitwise_equal(model: nn.Module, rate: float) -> None:
    expected, step = make_step(model)
    with HostTier(out_rate=rate, in_rate=rate) as tier:
        measured = profile(model, step, tier=tier, min_bytes=1 << 10)
        for share in (95, 70, 45):
            plan = make_plan(measured, f"{share}%")
            assert plan.peak <= plan.budget
            with plan.apply(model, tier=tier) as run:
                step()
            assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), expected, strict=True))
            assert run.evicted_bytes == 0
            assert run.peak == pytest.approx(plan.peak, rel=2e-3)  # tensors below min_bytes are not planned
            assert tier.used_bytes == 0


def test_the_cap_holds_and_the_least_budget_is_named(model: nn.Module) -> None:
    _, step = make_step(model)
    with HostTier(out_rate=1e8, in_rate=1e8) as tier:
        measured = profile(model, step, tier=tier, min_bytes=1 << 10)
        plan = make_plan(measured, "60%")
        with Applied(model, cap=plan.budget), pytest.raises(OutOfMemoryError, match="beyond the cap of"):
            step()
        with Applied(model, cap=plan.budget, tier=tier, min_bytes=1 << 10) as run:
            step()  # without a plan, what is kept leaves where the cap is reached
        assert run.evicted_bytes > 0
        assert run.peak <= plan.budget
        with pytest.raises(OutOfMemoryError, match=r"at least .* of it are needed"):
            make_plan(measured, "10%")
        assert "sent out" in str(plan)
        assert {row[0] for row in plan.rows()} >= {"0.down", "3.gate"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("60%", 600), ("1.5KiB", 1536), (7, 7), ("2 MB", 2_000_000), ("12", 12), ("0.5%", 5)],
        *[("1TiB", 1 << 40), ("2 pb", 2 * 10**15), (np.int64(9), 9)],
    ],
)
def test_budgets_are_bytes_amounts_or_shares(text: str | int, value: int) -> None:
    assert parse_budget(text, 1000) == value


@pytest.mark.parametrize("text", ["60 %%", "much", "-5", 0, "5XB", "", 0.6, True, None, float("nan")])
def test_other_budgets_are_refused(text: str | int) -> None:
    with pytest.raises(ValueError, match="budget"):
        parse_budget(text, 1000)


class Counting(nn.Module):
    """Counts in place what it has seen, or puts another buffer there."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.lin = nn.Linear(32, 128)
        self.register_buffer("seen", torch.zeros(128))
        self.in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.lin(x))
        seen = h.detach().abs().mean(0)
        if self.in_place:
            self.seen += seen
        else:
            self.seen = self.seen + seen
        return torch.tanh(h * (1 + self.seen)).view(-1, 32, 4).mean(-1)


class Convolved(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv1d(8, 32, 3, padding=1), norm(32), nn.Tanh(), nn.Conv1d(32, 8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x.view(-1, 8, 32)).view_as(x)


def spectral() -> nn.Module:
    return nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(32, 128)), nn.Tanh(), nn.Linear(128, 32), nn.Tanh()
    )


@pytest.mark.parametrize(
    "block",
    [
        lambda: nn.Sequential(nn.Sequential(Counting(True), nn.Tanh()), nn.Tanh()),
        lambda: nn.Sequential(nn.Sequential(Counting(False), nn.Tanh()), nn.Tanh()),
        lambda: Convolved(nn.BatchNorm1d),
        lambda: Convolved(lambda width: nn.InstanceNorm1d(width, affine=True, track_running_stats=True)),
        spectral,
    ],
    ids=["in place", "replaced", "batch norm", "instance norm", "power iteration"],
)
def test_what_a_forward_pass_counts_is_counted_once(block: Callable[[], nn.Module]) -> None:
    """Sending out costs much here: only what changes nothing may be computed again."""
    model = nn.Sequential(*(block() for _ in range(4)))
    x = torch.randn(128, 32)

    def step(which: nn.Module) -> list[Tensor]:
        which.zero_grad()
        which(x).square().mean().backward()
        return [*(p.grad.clone() for p in which.parameters()), *(b.clone() for b in which.buffers())]

    with HostTier(out_rate=2e7, in_rate=2e7) as tier:
        measured = profile(twin := copy.deepcopy(model), lambda: step(twin), tier=tier, min_bytes=512)
        plan = make_plan(measured, "88%")
        plain = copy.deepcopy(model)
        expected = [step(plain) for _ in range(3)]
        with plan.apply(model, tier=tier):
            for each in expected:
                assert all(torch.equal(a, b) for a, b in zip(step(model), each, strict=True))


def test_a_plan_for_another_model_is_refused_and_leaves_nothing() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(3)))
    rows = torch.randn(512, 16)
    with HostTier() as tier:
        plan = make_plan(profile(model, lambda: model(rows).square().mean().backward(), tier=tier), "60%")
        other = nn.Linear(16, 16)
        with pytest.raises(ValueError, match=r"for another model: it speaks of a module '.+', and Linear has none"):
            plan.apply(other, tier=tier).__enter__()
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []
    assert not other._forward_pre_hooks
    torch.empty(plan.budget + 1, dtype=torch.uint8)  # no cap is left
