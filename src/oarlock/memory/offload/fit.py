"""Profile and plan in one call, also for steps that differ, as those of mixtures of experts do."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from oarlock.memory.offload.plan import Plan, make_plan
from oarlock.memory.offload.profile import profile
from oarlock.memory.offload.quantile import at_quantile
from oarlock.memory.offload.tiers import Tier


def fit(
    model: nn.Module,
    step: Callable[[], object],
    *,
    budget: int | str,
    tier: Tier,
    device: torch.device | str = "cpu",
    optimizers: Iterable[torch.optim.Optimizer] = (),
    min_bytes: int = 1 << 14,
    num_profiles: int = 1,
    quantile: float = 0.95,
) -> Plan:
    """Measures steps and plans for one in which each storage is about as large as it gets.

    Args:
        model, step, tier, device, optimizers, min_bytes: see `profile`; within one profile the step must do the same
            each time.
        budget: see `make_plan`; a share is one of the peak that is planned for.
        num_profiles: how many steps are measured.
        quantile: of the sizes of each storage, and of each interval of time: what is planned for. What a larger step
            takes beyond it leaves by eviction.

    Raises:
        OutOfMemoryError: no plan is within the budget.
        ValueError: no profile, or a quantile outside of [0, 1].
    """
    if num_profiles < 1 or not 0 <= quantile <= 1:
        raise ValueError(f"num_profiles = {num_profiles}, quantile = {quantile}: at least 1, and within [0, 1]")
    optimizers = list(optimizers)
    profiles = [
        profile(model, step, tier=tier, device=device, optimizers=optimizers, min_bytes=min_bytes)
        for _ in range(num_profiles)
    ]
    return make_plan(at_quantile(profiles, quantile), budget)
