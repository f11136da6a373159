"""An optimizer whose states live in a second tier takes the steps of one whose states do not."""

import copy

import pytest
import torch
from torch import nn

from oarlock.memory.offload import HostTier, Meter, OptimizerTier


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_steps_are_bitwise_equal_and_states_are_away_between_them(kind: type[torch.optim.Optimizer]) -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
    twin = copy.deepcopy(model)
    options = {"lr": 1e-2, "weight_decay": 0.1} | ({"momentum": 0.9} if kind is torch.optim.SGD else {})
    own, other = kind(model.parameters(), **options), kind(twin.parameters(), **options)
    x = torch.randn(8, 64)
    with HostTier(out_rate=1e8, in_rate=1e8) as tier, Meter() as meter:
        meter.watch(model)
        tiered = OptimizerTier(own, tier, part_bytes=2 * 64 * 64 * 4)
        for _ in range(4):
            model(x).square().sum().backward()
            tiered.step()
            own.zero_grad()
            held = [value.nbytes for state in own.state.values() for value in state.values()]
            assert max(held) < 1 << 12
            twin(x).square().sum().backward()
            other.step()
            other.zero_grad()
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(p, q)
        tiered.load()
        mine, theirs = own.state_dict()["state"], other.state_dict()["state"]
        for number, state in theirs.items():
            for name, value in state.items():
                assert torch.equal(mine[number][name], value), name
        assert tier.used_bytes == 0


def test_state_dicts_are_whole_while_states_are_away() -> None:
    """Saved and loaded as if there were no tier, also states of other strides; a step goes on from what was loaded."""
    model = nn.Sequential(nn.Conv2d(8, 32, 3), nn.Flatten(), nn.Linear(32 * 4, 64)).to(
        memory_format=torch.channels_last
    )
    twin = copy.deepcopy(model)
    own, other = torch.optim.AdamW(model.parameters()), torch.optim.AdamW(twin.parameters())
    x = torch.randn(4, 8, 4, 4)

    def same() -> bool:
        mine, theirs = own.state_dict()["state"], other.state_dict()["state"]
        pairs = [(mine[n][key], value) for n, state in theirs.items() for key, value in state.items()]
        return all(torch.equal(a, b) and a.stride() == b.stride() for a, b in pairs)

    with HostTier() as tier:
        tiered = OptimizerTier(own, tier, part_bytes=1 << 12)
        saved = {}
        for number in range(6):
            for module in (model, twin):
                module.zero_grad()
                module(x).square().sum().backward()
            tiered.step()
            other.step()
            assert tiered.away_bytes == sum(2 * p.nbytes for p in model.parameters() if p.nbytes >= 1 << 12)
            if number == 1:
                saved = copy.deepcopy(own.state_dict())
                assert tiered.away_bytes == 0
            elif number == 3:
                own.load_state_dict(copy.deepcopy(saved))
                other.load_state_dict(copy.deepcopy(saved))
            elif number != 2:
                assert same()
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
        assert tier.used_bytes == 0


def test_a_step_that_fails_leaves_states_where_they_can_be_found() -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(5)))
    twin = copy.deepcopy(model)
    own, other = torch.optim.Adam(model.parameters()), torch.optim.Adam(twin.parameters())
    x = torch.randn(8, 64)
    num_parts = 0

    def fail_third_part(*_: object) -> None:
        nonlocal num_parts
        num_parts += 1
        if num_parts == 3:
            raise KeyError("third part")

    with HostTier(out_rate=2e7, in_rate=2e7) as tier:
        tiered = OptimizerTier(own, tier, part_bytes=64 * 64 * 4)
        for _ in range(2):
            for module in (model, twin):
                module.zero_grad()
                module(x).square().sum().backward()
            tiered.step()
            other.step()
        before = copy.deepcopy(other.state_dict()["state"])
        own.param_groups[0]["lr"] = other.param_groups[0]["lr"] = 0.0
        for module in (model, twin):
            module.zero_grad()  # states change by their own decay only
        handle = own.register_step_pre_hook(fail_third_part)
        with pytest.raises(KeyError):
            tiered.step()
        handle.remove()
        assert len(own.param_groups[0]["params"]) == 10
        after = own.state_dict()["state"]
        assert all(torch.equal(after[n][key], value) for n, state in before.items() for key, value in state.items())
        assert tier.used_bytes == 0


def test_a_closure_is_refused() -> None:
    with HostTier() as tier, pytest.raises(ValueError, match="without one"):
        OptimizerTier(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0), tier).step(lambda: 0.0)
