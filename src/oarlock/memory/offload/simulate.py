"""What a step would take under a plan: exact peak of memory, waiting for links, computing again.

The measured step, with everything sent out at once, is the base. A storage that is kept adds its bytes from where the
program drops it to where it is needed; one that is sent out adds them until it is released and from where it is
fetched; a region that is computed again adds its own curve at the first need of what it makes.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from oarlock.memory.offload.profile import Profile
from oarlock.memory.offload.session import Choice

_SAFETY = 0.8  # of the measured rate, when it is decided how late a fetch may begin


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A simulated step.

    Attributes:
        peak: bytes at most.
        seconds: of the step; recompute_seconds and stall_seconds are in it.
        releases, fetches: (moment, group) of all that is sent out.
        out_bytes: to the second tier; away_bytes: there at most.
        memory: int64 [pieces] bytes at most in each piece of the step; times: float64 [pieces] when they begin.
    """

    peak: int
    seconds: float
    recompute_seconds: float
    stall_seconds: float
    releases: tuple[tuple[int, int], ...]
    fetches: tuple[tuple[int, int], ...]
    out_bytes: int
    memory: NDArray[np.int64]
    times: NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Again:
    """A region computed again: as much of it as is wanted; in the piece `end` the backward pass drops the last."""

    moment: int
    seconds: float
    peak: int
    inputs: tuple[int, ...]
    end: int


class Simulator:
    """Simulates plans of one profile.

    Args:
        profile: the measured step.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        num_events = len(profile.deltas)
        live = profile.static_bytes + np.cumsum(profile.deltas)
        groups, moments = profile.groups, profile.moments
        positions = np.array([position for position, _ in moments], np.int64)
        deaths = np.array([group.death for group in groups], np.int64)
        last = np.array([group.end for group in groups], np.int64)
        cuts = np.concatenate([[0], positions, deaths, last])
        self._cuts = np.unique(cuts[cuts < max(num_events, 1)])
        self._base = np.maximum.reduceat(live, self._cuts) if num_events else np.zeros(1, np.int64)
        before = np.concatenate([[profile.static_bytes], live])
        self._before = before[self._cuts]  # also counts what dies at the cut itself, as does the piece before
        self.num_pieces = len(self._cuts)
        self._piece = np.searchsorted(self._cuts, positions)  # of each moment
        self._death = [int(np.searchsorted(self._cuts, death)) for death in deaths]
        self._end = [int(np.searchsorted(self._cuts, position)) for position in last]
        self.moment_of = {position: number for number, (position, _) in enumerate(moments)}
        self.need = [len(moments) if g.need is None else self.moment_of[g.need] for g in groups]
        self.save = [-1 if g.save is None else self.moment_of[g.save] for g in groups]
        clock = profile.clock
        self._step: NDArray[np.float64] = np.diff(np.concatenate([clock[positions], [clock[-1]]]))
        self._start = float(clock[positions[0]]) if len(positions) else float(clock[-1])
        self._times = clock[self._cuts]
        self._again: dict[tuple[int, frozenset[int]], Again] = {}
        self._sizes = [group.num_bytes for group in groups]

    def piece(self, moment: int) -> int:
        """Where a moment begins; behind the last, the end."""
        return int(self._piece[moment]) if moment < len(self._piece) else self.num_pieces

    def base(self) -> NDArray[np.int64]:
        """int64 [pieces]: bytes at most in each, with everything sent out at once."""
        return self._base

    def again(self, region: int, wanted: frozenset[int]) -> Again:
        """What it takes to compute the storages `wanted` of a region again."""
        key = (region, wanted)
        if key not in self._again:
            self._again[key] = self._compute_again(region, wanted)
        return self._again[key]

    def _compute_again(self, region: int, wanted: frozenset[int]) -> Again:
        profile = self.profile
        place = profile.regions[region]
        stop = max(profile.groups[g].last_save for g in wanted)
        deltas, numbers = profile.deltas[place.begin : stop + 1], profile.numbers[place.begin : stop + 1]
        # Only what is made inside counts, and what is wanted stays.
        made = numbers[deltas > 0]
        kept = {int(profile.numbers[profile.groups[g].begin]) for g in wanted}
        own = np.isin(numbers, made) & ~((deltas < 0) & np.isin(numbers, list(kept)))
        curve = np.cumsum(np.where(own, deltas, 0))
        seconds = float(profile.clock[stop] - profile.clock[place.begin])
        inputs = tuple(g for g in place.inputs if g is not None)
        end = max(self._end[g] for g in wanted)
        return Again(min(self.need[g] for g in wanted), seconds, int(curve.max(initial=0)), inputs, end)

    def regions_of(self, choices: Sequence[Choice], regions: Collection[int]) -> list[Again]:
        """The regions that have something to make again."""
        result = []
        for region in regions:
            wanted = frozenset(g for g in self.profile.regions[region].inside if choices[g] == "recompute")
            if wanted:
                result.append(self.again(region, wanted))
        return result

    def needs(self, choices: Sequence[Choice], again: Sequence[Again]) -> tuple[list[int], list[int]]:
        """Of each group the moment of its first need, also as the input of a region; and the piece until which it is
        held for it, behind which the measured step has it."""
        needs = list(self.need)
        ends = [self.piece(need) if save >= 0 else 0 for need, save in zip(needs, self.save, strict=True)]
        for each in again:
            for group in each.inputs:
                needs[group] = min(needs[group], each.moment)
                if self.save[group] < 0:
                    ends[group] = max(ends[group], self._held_until(choices[group], each))
        return needs, ends

    def _held_until(self, choice: Choice, again: Again) -> int:
        """The piece up to which the input of a region is on the device: with the tier's copy, only to compute it."""
        here = self.piece(again.moment) + 1
        return here if choice == "offload" else max(here, again.end)

    def curve(
        self, choices: Sequence[Choice], regions: Collection[int], again: Sequence[Again], ends: Sequence[int]
    ) -> NDArray[np.int64]:
        """int64 [pieces]: bytes with nothing released: what is sent out counts as if it were kept."""
        held = np.zeros(self.num_pieces + 1, np.int64)
        made: dict[int, int] = {}  # group -> moment from which it lives again
        for region in regions:
            wanted = frozenset(g for g in self.profile.regions[region].inside if choices[g] == "recompute")
            if wanted:
                made |= dict.fromkeys(wanted, self.again(region, wanted).moment)
        for group, num_bytes in enumerate(self._sizes):
            first = self.piece(made[group]) if group in made else self._death[group]
            last = ends[group]
            if first < last:
                held[first] += num_bytes
                held[last] -= num_bytes
        longer: dict[int, int] = {}  # inputs of regions: held behind their own last need
        for each in again:
            for group in each.inputs:
                if self.save[group] >= 0 and (choices[group] != "offload" or self.need[group] < each.moment):
                    longer[group] = max(longer.get(group, 0), self._held_until(choices[group], each))
        for group, last in longer.items():
            held[self._end[group]] += self._sizes[group]
            held[max(self._end[group], last)] -= self._sizes[group]
        held = np.cumsum(held)[:-1]
        base = self._base
        if again:
            base = base.copy()
            for each in again:
                at = self.piece(each.moment)
                own = sum(self._sizes[g] for g, m in made.items() if m == each.moment and self.need[g] > m)
                base[at] = max(base[at], self._before[at] + each.peak - own)
        return base + held

    def run(self, choices: Sequence[Choice], regions: Collection[int], budget: int | None = None) -> Outcome:
        """Simulates a step.

        Args:
            choices: of each group; "recompute" only inside one of `regions`.
            regions: numbers of the regions that are computed again; none inside another.
            budget: bytes that the schedule tries to stay under.
        """
        profile, sizes = self.profile, self._sizes
        again = self.regions_of(choices, regions)
        needs, ends = self.needs(choices, again)
        memory = self.curve(choices, regions, again, ends)
        limit = np.iinfo(np.int64).max if budget is None else budget
        extra: NDArray[np.float64] = np.zeros(len(self._step))
        for each in again:
            extra[each.moment] += each.seconds
        nominal = np.cumsum(np.concatenate([[self._start], np.add(self._step, extra)]))

        inputs = {group for each in again for group in each.inputs}
        sent = [g for g, choice in enumerate(choices) if choice == "offload" and self._death[g] < ends[g]]
        at_save: dict[int, list[int]] = {}
        for g in sent:
            moment = self.save[g]
            if g in inputs:  # a region packs its arguments before anything inside is saved
                moment = self._entry(g, moment, again, regions)
            at_save.setdefault(moment, []).append(g)
        order = sorted(sent, key=lambda g: needs[g])
        latest, bound = [0.0] * len(order), float("inf")
        for k in range(len(order) - 1, -1, -1):
            g = order[k]
            bound = min(nominal[min(needs[g], len(self._step))], bound) - sizes[g] / (profile.in_rate * _SAFETY)
            latest[k] = bound
        queue = deque(zip(order, latest, strict=True))

        now, out_free, in_free, stalled = self._start, 0.0, 0.0, 0.0
        pending: deque[tuple[int, float]] = deque()
        away: set[int] = set()
        arrival: dict[int, float] = {}
        releases: list[tuple[int, int]] = []
        fetches: list[tuple[int, int]] = []
        waits_at: dict[int, list[int]] = {}
        for g in order:
            waits_at.setdefault(needs[g], []).append(g)
        num_moments = len(self._step)
        times = np.empty(num_moments + 1)

        def release(moment: int) -> None:
            g, _ = pending.popleft()
            releases.append((moment, g))
            away.add(g)
            memory[max(self._death[g], self.piece(moment)) : ends[g]] -= sizes[g]

        for moment in range(num_moments):
            times[moment] = now
            here, there = self.piece(moment), self.piece(moment + 1)
            for g in at_save.get(moment, ()):
                out_free = max(out_free, now) + sizes[g] / profile.out_rate
                pending.append((g, out_free))
            while pending and pending[0][1] <= now:
                release(moment)
            while queue:
                g, start = queue[0]
                due = needs[g] <= moment
                if not due and nominal[moment + 1] <= start:
                    break
                if g not in away:  # not released yet: it stays, where there is room for it
                    remaining = [each for each in pending if each[0] != g]
                    if len(remaining) == len(pending) and not due:
                        break  # not even saved
                    until = memory[here : self.piece(needs[g])]
                    if not due and until.size and int(until.max()) > limit:
                        break
                    pending = deque(remaining)
                    queue.popleft()
                    continue
                before_need = memory[here : self.piece(needs[g])]
                if not due and before_need.size and int(before_need.max()) + sizes[g] > limit:
                    break
                queue.popleft()
                memory[here : ends[g]] += sizes[g]
                in_free = max(in_free, now) + sizes[g] / profile.in_rate
                arrival[g] = in_free
                fetches.append((moment, g))
            while pending and here < there and int(memory[here:there].max()) > limit:
                if not any(self._death[g] < there for g, _ in pending):
                    break
                stalled += max(0.0, pending[0][1] - now)
                now = max(now, pending[0][1])
                release(moment)
            for g in waits_at.get(moment, ()):
                if g in arrival:
                    stalled += max(0.0, arrival[g] - now)
                    now = max(now, arrival[g])
            now += float(self._step[moment]) + float(extra[moment])
        times[num_moments] = now
        moments_of_pieces = np.searchsorted(self._piece, np.arange(self.num_pieces), side="right") - 1
        piece_times = np.where(moments_of_pieces >= 0, times[np.maximum(moments_of_pieces, 0)], self._times)
        return Outcome(
            peak=int(memory.max(initial=profile.static_bytes)),
            seconds=now,
            recompute_seconds=float(extra.sum()),
            stall_seconds=stalled,
            releases=tuple(releases),
            fetches=tuple(fetches),
            out_bytes=sum(sizes[g] for g in sent),
            memory=memory,
            times=piece_times,
        )

    def _entry(self, group: int, save: int, again: Sequence[Again], regions: Collection[int]) -> int:
        """The first moment at or behind the entry of a region that takes a group."""
        profile = self.profile
        starts = [profile.regions[r].begin for r in regions if group in profile.regions[r].inputs]
        first = int(np.searchsorted([position for position, _ in profile.moments], min(starts)))
        return first if save < 0 else min(save, first)
