"""The learning-rate factor: bounds, ends, and torch's own cosine as an oracle."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oarlock.train.config import ScheduleConfig
from oarlock.train.schedule import learning_rate_factor


@given(
    kind=st.sampled_from(["wsd", "cosine", "constant"]),
    num_steps=st.integers(1, 200),
    warmup=st.integers(0, 250),
    decay=st.floats(0, 1),
    final=st.floats(0, 1),
)
def test_factor_lies_in_the_unit_interval_and_never_rises_after_warmup(
    kind: str, num_steps: int, warmup: int, decay: float, final: float
) -> None:
    schedule = ScheduleConfig(kind=kind, warmup_steps=warmup, decay_share=decay, final_factor=final)
    factors = [learning_rate_factor(s, num_steps, schedule) for s in range(1, num_steps + 1)]
    assert all(0 < f <= 1 or (f >= 0 and final == 0) for f in factors)
    tail = factors[min(warmup, num_steps) :]
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(tail))


def test_cosine_without_warmup_is_torchs() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50, eta_min=0.1)
    schedule = ScheduleConfig(kind="cosine", warmup_steps=0, final_factor=0.1)
    for step in range(1, 51):
        assert learning_rate_factor(step, 50, schedule) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
        optimizer.step()
        theirs.step()


def test_wsd_is_flat_then_linear() -> None:
    schedule = ScheduleConfig(kind="wsd", warmup_steps=4, decay_share=0.5)
    factors = [learning_rate_factor(s, 20, schedule) for s in range(1, 21)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4:11] == [1.0] * 7
    assert factors[-1] == pytest.approx(0.1)
