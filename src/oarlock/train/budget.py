"""Keeps a run's steps within a budget of memory: measures the first ones, plans, follows the plan under a hard cap."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from oarlock.memory import OutOfMemoryError
from oarlock.memory.amounts import amount
from oarlock.memory.offload import (
    Applied,
    FileTier,
    OptimizerTier,
    PinnedTier,
    Plan,
    Profile,
    Tier,
    make_plan,
    parse_budget,
    profile,
)
from oarlock.memory.offload.drift import Drift
from oarlock.memory.offload.quantile import at_quantile
from oarlock.memory.offload.simulate import Simulator
from oarlock.models.moe import SparseMLP
from oarlock.train.config import MemoryConfig
from oarlock.train.optim import Muon

_MIN_BYTES = 1 << 12
_NUM_PROFILES = 4  # of a model with experts, whose steps differ: the first ones are measured
_QUANTILE = 0.95  # of their sizes and times
_SHARE = 12  # of the room for an optimizer's parts: two of two moments each, and what computing one takes


class MemoryBudget:
    """Plans and caps the steps of one run.

    Args:
        config: budget, and where what does not fit goes.
        model, optimizers: of the run. States that an optimizer has yet to make count from the beginning.
        device: they are on.
        tell: called with each new plan, and the bytes of optimizer states that live in the second tier; not called
            where only the cap is enforced.
    """

    def __init__(
        self,
        config: MemoryConfig,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        device: torch.device,
        tell: Callable[[Plan, int], None],
    ) -> None:
        self._config, self._model, self._optimizers, self._device = config, model, optimizers, device
        self._tell = tell
        self._rate = config.rate or None
        self._tier: Tier | None = None
        has_experts = any(isinstance(module, SparseMLP) for module in model.modules())
        self._num_profiles = _NUM_PROFILES if has_experts and config.plan else 1
        self._profiles: list[Profile] = []
        self._plan: Plan | None = None
        self._drift: Drift | None = None
        self._tiered: dict[torch.optim.Optimizer, OptimizerTier] = {}  # whose states live in the second tier
        self._makes_states = False  # the optimizers will, in the step to come
        self.peak_bytes = 0

    @contextmanager
    def opened(self) -> Iterator[None]:
        """The second tier exists in this context."""
        if self._device.type == "cpu":
            self._tier = FileTier(self._config.tier or None, out_rate=self._rate, in_rate=self._rate)
        else:
            self._tier = PinnedTier(self._device)
        with self._tier:
            yield

    @contextmanager
    def step(self, measure: Callable[[], object]) -> Iterator[None]:
        """One optimizer step within the budget.

        Args:
            measure: one forward and backward pass like those of this step; called some times before, where there is
                no plan yet or the steps have moved away from it, and in the first steps of a model with experts.

        Raises:
            OutOfMemoryError: no plan is within the budget, or the step takes more.
        """
        if self._plan is None or len(self._profiles) < self._num_profiles:
            self._make_plan(measure)
        plan, tier = self._plan, self._tier
        assert plan is not None
        assert tier is not None
        context = (
            plan.apply(self._model, tier=tier, device=self._device, optimizers=self._optimizers)
            if self._config.plan
            else Applied(self._model, cap=plan.budget, device=self._device, optimizers=self._optimizers)
        )
        try:
            with context as run:
                yield
        except OutOfMemoryError as error:
            advice = "" if self._config.plan else "; memory.plan = true finds out what need not be there all the time"
            raise OutOfMemoryError(f"{error}: memory.budget = {self._config.budget}{advice}") from error
        self.peak_bytes = run.peak
        made_states, self._makes_states = self._makes_states, False
        if self._drift is not None and not made_states and self._drift.update(run.peak, run.stall_seconds):
            self._plan = None
            self._profiles.clear()

    def step_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """optimizer.step(), part by part where its states live in the second tier."""
        self._tiered.get(optimizer, optimizer).step()

    @contextmanager
    def states_here(self) -> Iterator[None]:
        """All optimizer states are on the device meanwhile, to be saved: between steps, where activations are not."""
        for tiered in self._tiered.values():
            tiered.load()
        try:
            yield
        finally:
            for tiered in self._tiered.values():
                tiered.send()

    def _make_plan(self, measure: Callable[[], object]) -> None:
        assert self._tier is not None
        measured = profile(
            self._model,
            measure,
            tier=self._tier,
            device=self._device,
            optimizers=self._optimizers,
            min_bytes=_MIN_BYTES,
        )
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        missing = sum(_missing_bytes(optimizer) for optimizer in self._optimizers)
        self._makes_states = missing > 0
        states = sum(_sendable_bytes(optimizer) for optimizer in self._optimizers)
        away = sum(tiered.away_bytes for tiered in self._tiered.values())
        self._profiles.append(dataclasses.replace(measured, static_bytes=measured.static_bytes + missing + away))
        here = at_quantile(self._profiles, _QUANTILE)
        unplanned = Simulator(here).run(("keep",) * len(here.groups), ())
        cap = parse_budget(self._config.budget, unplanned.peak)
        if not self._config.plan:
            measured = here
            self._plan = Plan(measured, cap, ("keep",) * len(measured.groups), (), unplanned, unplanned)
            return
        plan = None if self._tiered else self._plan_with_states(here, cap)
        if plan is None:
            without = dataclasses.replace(here, static_bytes=here.static_bytes - states - away)
            plan = make_plan(without, cap)
            self._send_states(cap - without.static_bytes)
        self._plan = plan
        self._drift = Drift(plan.peak, plan.outcome.stall_seconds, plan.outcome.seconds)
        if len(self._profiles) in (1, self._num_profiles):
            self._tell(plan, states + away if self._tiered else 0)

    def _plan_with_states(self, measured: Profile, cap: int) -> Plan | None:
        """A plan that keeps the optimizers' states on the device, if there is one."""
        try:
            return make_plan(measured, cap)
        except OutOfMemoryError:
            if not self._config.optimizer:
                raise
            return None

    def _send_states(self, room: int) -> None:
        """Has the states live in the second tier. Of the bytes beside parameters, gradients take as many as these; what
        is left holds two parts of states at a time, and what computing them takes."""
        assert self._tier is not None
        room -= sum(p.nbytes for p in self._model.parameters() if p.requires_grad)
        for optimizer in self._optimizers:
            if optimizer not in self._tiered:
                self._tiered[optimizer] = OptimizerTier(
                    optimizer, self._tier, part_bytes=max(room // _SHARE, 1 << 16), min_bytes=_MIN_BYTES
                )
                self._tiered[optimizer].send()


def describe(plan: Plan, state_bytes: int = 0) -> list[str]:
    """Lines for people: the whole, then each kind of module whose storages do not all stay.

    Args:
        state_bytes: of optimizers, in the second tier.
    """
    lines = [str(plan)]
    if state_bytes:
        lines.append(f"optimizer: {amount(state_bytes)} of states in the second tier, stepped part by part")
    moved: dict[str, list[int]] = {}
    for group, choice in zip(plan.profile.groups, plan.choices, strict=True):
        if choice != "keep":
            kind = ".".join("*" if part.isdigit() else part for part in group.key[1].split("."))
            moved.setdefault(kind, [0, 0])[choice == "offload"] += group.num_bytes
    for kind, (again, sent) in moved.items():
        parts = [f"{amount(n)} {what}" for n, what in ((again, "computed again"), (sent, "sent out")) if n]
        lines.append(f"{kind}: {', '.join(parts)}")
    return lines


def _sendable_bytes(optimizer: torch.optim.Optimizer) -> int:
    """States on the device, or made by the first step, that are large enough to be sent out."""
    states = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    return sum(v.nbytes for v in states if v.nbytes >= _MIN_BYTES) + _missing_bytes(optimizer, _MIN_BYTES)


def _missing_bytes(optimizer: torch.optim.Optimizer, least: int = 0) -> int:
    """States of at least so many bytes that the first step will make: one moment for Muon, two for AdamW."""
    num = 1 if isinstance(optimizer, Muon) else 2
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return sum(num * p.nbytes for p in parameters if p.nbytes >= least and not optimizer.state.get(p))
