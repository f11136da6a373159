"""A plan for one model and one kind of step: what is kept, computed again, sent out; when; and what that takes."""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, SupportsIndex

from torch import nn

from oarlock.memory.amounts import amount
from oarlock.memory.offload.apply import Applied
from oarlock.memory.offload.profile import Profile
from oarlock.memory.offload.search import Search
from oarlock.memory.offload.session import Choice, Schedule
from oarlock.memory.offload.simulate import Outcome, Simulator
from oarlock.memory.offload.tiers import Tier
from oarlock.memory.pool import OutOfMemoryError, Pool

if TYPE_CHECKING:
    import torch

_SLACK = 0.003  # of the budget, for tensors too small to be looked at
_UNITS = {"": 1, "B": 1} | {
    f"{prefix}{unit}": base**power
    for power, prefix in enumerate("KMGTP", 1)
    for unit, base in (("B", 1000), ("IB", 1024))
}


def parse_budget(budget: int | str, of: int = 0) -> int:
    """Bytes from a number, "1.5 GiB", "800MB", or "60%" of `of`.

    Raises:
        ValueError: something else.
    """
    if isinstance(budget, str):
        found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%|[A-Za-z]*)\s*", budget)
        unit = found.group(2).upper() if found else "?"
        if found is None or (unit != "%" and unit not in _UNITS):
            raise ValueError(f"budget = {budget!r}: give bytes, an amount such as 1.5GiB, or a share such as 60%")
        num_bytes = int(float(found.group(1)) * (of / 100 if unit == "%" else _UNITS[unit]))
    elif isinstance(budget, SupportsIndex) and not isinstance(budget, bool):
        num_bytes = operator.index(budget)
    else:
        raise ValueError(f'budget = {budget!r}: give whole bytes, an amount such as "1.5GiB", or a share such as "60%"')
    if num_bytes <= 0:
        raise ValueError(f"budget = {budget!r}: must be more than nothing")
    return num_bytes


def _amounts(keep: int, recompute: int, offload: int) -> tuple[str, str, str]:
    texts = [amount(num_bytes) if num_bytes else "" for num_bytes in (keep, recompute, offload)]
    return texts[0], texts[1], texts[2]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What `make_plan` found.

    Attributes:
        profile: of the step.
        budget: bytes that may live at once.
        choices: of each group of the profile.
        regions: numbers of the regions that are computed again.
        outcome: what the simulator says; unplanned: the same with everything kept.
    """

    profile: Profile
    budget: int
    choices: tuple[Choice, ...]
    regions: tuple[int, ...]
    outcome: Outcome
    unplanned: Outcome

    @property
    def peak(self) -> int:
        """Bytes at most."""
        return self.outcome.peak

    @property
    def schedule(self) -> Schedule:
        """As a session follows it."""
        profile = self.profile
        simulator = Simulator(profile)
        needs, _ = simulator.needs(self.choices, simulator.regions_of(self.choices, self.regions))
        groups = profile.groups
        return Schedule(
            choices={group.key: choice for group, choice in zip(groups, self.choices, strict=True)},
            regions={
                profile.regions[i].key: [None if g is None else groups[g].key for g in profile.regions[i].inputs]
                for i in self.regions
            },
            saves={g.key: simulator.save[i] for i, g in enumerate(groups) if g.save is not None},
            needs={g.key: needs[i] for i, g in enumerate(groups) if needs[i] < len(profile.moments)},
            releases=[(moment, groups[g].key) for moment, g in self.outcome.releases],
            fetches=[(moment, groups[g].key) for moment, g in self.outcome.fetches],
        )

    def apply(
        self,
        model: nn.Module,
        *,
        tier: Tier,
        device: torch.device | str = "cpu",
        optimizers: Iterable[torch.optim.Optimizer] = (),
        evict: bool = True,
        pool: Pool | None = None,
    ) -> Applied:
        """A context in which the model's steps follow the plan, under a hard cap of the budget.

        Args:
            model: of the profile.
            tier: where to.
            device: of the model.
            optimizers: whose states count as memory, too.
            evict: where the cap is reached all the same, send out what was to be kept.
            pool: that the model's tensors live in: it is relieved in the same way where it cannot meet a request.
        """
        return Applied(
            model,
            schedule=self.schedule,
            cap=self.budget,
            tier=tier,
            device=device,
            optimizers=optimizers,
            min_bytes=self.profile.min_bytes,
            evict=evict,
            pool=pool,
        )

    def rows(self) -> list[tuple[str, str, str, str]]:
        """(module, kept, computed again, sent out): bytes by the module that saves them, in the order of the step."""
        lines: dict[str, Counter[str]] = {}
        for group, choice in zip(self.profile.groups, self.choices, strict=True):
            if group.save is None and choice == "keep":
                continue
            line = lines.setdefault(group.key[1] or "model", Counter())
            line[choice] += group.num_bytes
        return [(path, *_amounts(line["keep"], line["recompute"], line["offload"])) for path, line in lines.items()]

    def __str__(self) -> str:
        saved = Counter[str]()
        for group, choice in zip(self.profile.groups, self.choices, strict=True):
            saved[choice] += group.num_bytes if group.save is not None else 0
        outcome = self.outcome
        return (
            f"peak {amount(outcome.peak)} of {amount(self.budget)} "
            f"(with everything kept {amount(self.unplanned.peak)}); "
            f"kept {amount(saved['keep'])}, computed again {amount(saved['recompute'])}, "
            f"sent out {amount(saved['offload'])}; "
            f"step {outcome.seconds:.3f} s instead of {self.unplanned.seconds:.3f}, "
            f"of that {outcome.recompute_seconds:.3f} computing again and {outcome.stall_seconds:.3f} waiting"
        )


def make_plan(profile: Profile, budget: int | str) -> Plan:
    """The fastest plan that was found within a budget.

    Args:
        profile: of the step.
        budget: bytes, an amount such as "1.5GiB", or a share of the peak with everything kept, such as "60%".

    Raises:
        OutOfMemoryError: no plan is within the budget; the message says what is needed at least.
    """
    simulator = Simulator(profile)
    unplanned = simulator.run(("keep",) * len(profile.groups), ())
    num_bytes = parse_budget(budget, unplanned.peak)
    search = Search(simulator, int(num_bytes * (1 - _SLACK)))
    found = search.run()
    if found is None:
        assert search.least is not None
        least = _least_budget(simulator, search.least.outcome.peak)
        tier = "" if profile.tier_bytes is None else f"; the second tier holds {amount(profile.tier_bytes)}"
        raise OutOfMemoryError(
            f"no plan keeps the step within {amount(num_bytes)}: with everything kept it takes "
            f"{amount(unplanned.peak)}, at least {amount(least)} ({least:,} bytes) of it are needed; "
            f"{amount(profile.static_bytes)} are there before the step{tier}"
        )
    return Plan(profile, num_bytes, found.choices, tuple(sorted(found.regions)), found.outcome, unplanned)


def _least_budget(simulator: Simulator, peak: int) -> int:
    """The budget for which a plan with this peak, or little more, is found."""
    while True:
        budget = math.ceil(peak / (1 - _SLACK))
        budget += int(budget * (1 - _SLACK)) < peak
        search = Search(simulator, int(budget * (1 - _SLACK)))
        if search.any() is not None:
            return budget
        assert search.least is not None
        peak = max(peak + 1, search.least.outcome.peak)
