"""Chooses what is kept, computed again and sent out: two thresholds over sorted lists, then changes and swaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oarlock.memory.offload.session import Choice
from oarlock.memory.offload.simulate import Outcome, Simulator
from oarlock.memory.offload.tiers import tier_bytes

_NUM_PREFIXES = 9
_TRAFFIC = 1e-3  # a byte sent for nothing costs this share of its time: of equal plans the one that sends less


class Candidate:
    """A plan under trial."""

    def __init__(self, choices: Sequence[Choice], regions: frozenset[int], outcome: Outcome, rate: float) -> None:
        self.choices, self.regions, self.outcome = tuple(choices), regions, outcome
        self.cost = outcome.seconds + _TRAFFIC * outcome.out_bytes / rate


class Search:
    """Looks for the fastest plan whose peak is within a budget.

    Args:
        simulator: of the profile.
        budget: bytes.
        max_runs: simulations for the local search.
    """

    def __init__(self, simulator: Simulator, budget: int, max_runs: int = 600) -> None:
        self._simulator, self._budget, self._left = simulator, budget, max_runs
        self._profile = simulator.profile
        self._num = len(self._profile.groups)
        self._seen: dict[tuple[tuple[Choice, ...], frozenset[int]], Candidate] = {}
        self.least: Candidate | None = None
        self.best: Candidate | None = None

    def run(self) -> Candidate | None:
        """The best plan found; None if none is within the budget."""
        if self.any() is not None and self.best is not self.trial(("keep",) * self._num, frozenset()):
            self._improve()
        return self.best

    def any(self) -> Candidate | None:
        """The best of the plans that two thresholds describe."""
        if self.trial(("keep",) * self._num, frozenset()) is self.best:
            return self.best  # nothing has to go
        for family in self._families():
            lengths = sorted({round(len(family) * i / _NUM_PREFIXES) for i in range(_NUM_PREFIXES + 1)})
            for length in lengths:
                self._fewest_sent(frozenset(family[:length]))
        return self.best

    def trial(self, choices: Sequence[Choice], regions: frozenset[int]) -> Candidate:
        """Simulates a plan and remembers it if it is the best so far, or the smallest."""
        key = (tuple(choices), regions)
        if key not in self._seen:
            outcome = self._simulator.run(choices, regions, self._budget)
            self._seen[key] = Candidate(choices, regions, outcome, self._profile.out_rate)
        found = self._seen[key]
        if not self._fits_tier(found):
            return found
        if found.outcome.peak <= self._budget and (self.best is None or found.cost < self.best.cost):
            self.best = found
        if self.least is None or found.outcome.peak < self.least.outcome.peak:
            self.least = found
        return found

    def _fits_tier(self, candidate: Candidate) -> bool:
        """All that is sent in a step may be in the tier at once."""
        capacity, groups = self._profile.tier_bytes, self._profile.groups
        if capacity is None:
            return True
        sent = (g.num_bytes for g, choice in zip(groups, candidate.choices, strict=True) if choice == "offload")
        return sum(map(tier_bytes, sent)) <= capacity

    # ------------------------------------------------------------------------------------------------- thresholds

    def _families(self) -> list[list[int]]:
        """Regions that do not lie in one another, those first that give most bytes for their time."""
        regions = self._profile.regions
        depths = [sum(a.begin < r.begin and r.end < a.end for a in regions) for r in regions]
        families = []
        for depth in sorted(set(depths)):
            family = [i for i, d in enumerate(depths) if d == depth]
            families.append(sorted(family, key=self._price))
        mixed: list[int] = []
        for i in sorted(range(len(regions)), key=self._price):
            if not any(self._overlap(i, j) for j in mixed):
                mixed.append(i)
        return [*families, mixed] if families else [[]]

    def _price(self, region: int) -> float:
        """Seconds per byte that computing it again saves."""
        inside = self._profile.regions[region].inside
        again = self._simulator.again(region, frozenset(inside))
        return again.seconds / sum(self._profile.groups[g].num_bytes for g in inside)

    def _overlap(self, a: int, b: int) -> bool:
        first, second = self._profile.regions[a], self._profile.regions[b]
        return first.begin < second.end and second.begin < first.end

    def _with_regions(self, regions: frozenset[int]) -> list[Choice]:
        choices: list[Choice] = ["keep"] * self._num
        for region in regions:
            for group in self._profile.regions[region].inside:
                choices[group] = "recompute"
        return choices

    def _fewest_sent(self, regions: frozenset[int]) -> None:
        """With these regions: the fewest groups sent out, by idle time or by size, that meet the budget."""
        choices = self._with_regions(regions)
        if self.trial(choices, regions).outcome.peak <= self._budget:
            return
        groups, simulator = self._profile.groups, self._simulator
        kept = [g for g in range(self._num) if choices[g] == "keep"]
        idle = sorted(kept, key=lambda g: groups[g].death - simulator.need[g])  # early saved, late needed
        large = sorted(kept, key=lambda g: -groups[g].num_bytes)

        def send(order: Sequence[int], count: int) -> Candidate:
            sent: list[Choice] = list(choices)
            for g in order[:count]:
                sent[g] = "offload"
            return self.trial(sent, regions)

        orders = (sorted(kept, key=lambda g: groups[g].save or 0), idle, large)
        for order in orders:
            low, high = 0, len(order)
            if send(order, high).outcome.peak > self._budget:
                continue
            while high - low > 1:
                middle = (low + high) // 2
                if send(order, middle).outcome.peak <= self._budget:
                    high = middle
                else:
                    low = middle

    # ------------------------------------------------------------------------------------------------------- swaps

    def _improve(self) -> None:
        """Takes the first change that helps, from where the last one was found, until none does."""
        improved = True
        while improved and self._left > 0:
            improved = False
            assert self.best is not None
            start = self.best
            for choices, regions in self._changes(start):
                if self._left <= 0:
                    return
                self._left -= 1
                if self.trial(choices, regions) is self.best and self.best is not start:
                    improved = True
                    break

    def _changes(self, start: Candidate) -> Iterator[tuple[list[Choice], frozenset[int]]]:
        regions, groups = self._profile.regions, self._profile.groups
        for i in sorted(range(len(regions)), key=lambda i: (i not in start.regions, -self._price(i))):
            if i in start.regions:
                changed = start.regions - {i}
            else:
                changed = frozenset(j for j in start.regions if not self._overlap(i, j)) | {i}
            for away in ("keep", "offload"):  # what takes the place of what was computed again
                choices: list[Choice] = list(start.choices)
                for j in changed ^ start.regions:
                    for g in regions[j].inside:
                        choices[g] = "recompute" if j in changed else away
                for j in changed:
                    for g in regions[j].inside:
                        choices[g] = "recompute" if choices[g] != "recompute" and j == i else choices[g]
                yield choices, changed
        inside = {g for i in start.regions for g in regions[i].inside}
        sent = [g for g in range(self._num) if start.choices[g] == "offload"]
        for g in sent:
            yield self._set(start, {g: "keep"}), start.regions
        for g in inside:
            for choice in ("keep", "offload", "recompute"):
                if choice != start.choices[g]:
                    yield self._set(start, {g: choice}), start.regions
        rest = [g for g in range(self._num) if start.choices[g] == "keep" and self._is_idle(g)]
        for g in sent:  # a swap for one of about its size or less
            near = sorted(rest, key=lambda other, g=g: abs(groups[other].num_bytes - groups[g].num_bytes))
            for other in near[:4]:
                yield self._set(start, {g: "keep", other: "offload"}), start.regions

    def _is_idle(self, group: int) -> bool:
        """Whether the program drops it before it is needed again."""
        need = self._profile.groups[group].need
        return need is None or self._profile.groups[group].death < need

    def _set(self, start: Candidate, changes: dict[int, Choice]) -> list[Choice]:
        choices = list(start.choices)
        for group, choice in changes.items():
            choices[group] = choice
        return choices
