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


def test_a_closure_is_refused() -> None:
    with HostTier() as tier, pytest.raises(ValueError, match="without one"):
        OptimizerTier(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0), tier).step(lambda: 0.0)
