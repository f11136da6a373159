"""Profiles of steps that differ, as those of mixtures of experts do, made one: each storage as large as it often is."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from oarlock.memory.offload.profile import Profile


def at_quantile(profiles: Sequence[Profile], quantile: float) -> Profile:
    """A step in which each storage, and each interval of time, is at a quantile of those measured.

    Storages are the same where they have the same place: saved ones their key (pass, module, call, number of the save),
    others what the step did last before they were made, and their number since then. Events are those of the profile
    with most of them; a storage that another step did not make has no bytes there. Sizes are measured ones: the
    smallest that reaches the quantile.

    Args:
        profiles: of one model, at least one.
        quantile: within [0, 1]. Rates of the links, and only they, are at 1 - quantile.
    """
    most = max(profiles, key=lambda each: (len(each.marks), each.saved_bytes))
    if len(profiles) == 1:
        return most
    groups = _sizes_at([{g.key: g.num_bytes for g in each.groups} for each in profiles], quantile)
    others = _sizes_at([_bytes_by_place(each) for each in profiles], quantile)
    sizes = {number: others[place] for number, place in _places(most).items()}
    resized = []
    for group in most.groups:
        num_bytes = group.num_bytes if group.begin < 0 else groups[group.key]
        resized.append(dataclasses.replace(group, num_bytes=num_bytes))
        own = [group.begin] if group.begin >= 0 else []
        back = group.need + 1 if group.need is not None else len(most.deltas)
        if back < len(most.deltas) and most.deltas[back] == group.num_bytes:  # the copy that came back
            own.append(back)
        for position in own:
            sizes[int(most.numbers[position])] = num_bytes
    deltas = [
        int(np.sign(delta)) * sizes.get(int(number), abs(int(delta)))
        for number, delta in zip(most.numbers, most.deltas, strict=True)
    ]
    return dataclasses.replace(
        most,
        static_bytes=_size_at([each.static_bytes for each in profiles], quantile),
        deltas=np.array(deltas, np.int64),
        groups=tuple(resized),
        clock=_clock_at(profiles, most, quantile),
        out_rate=float(np.quantile([each.out_rate for each in profiles], 1 - quantile)),
        in_rate=float(np.quantile([each.in_rate for each in profiles], 1 - quantile)),
    )


def _size_at(sizes: Sequence[int], quantile: float) -> int:
    return int(np.quantile(sizes, quantile, method="higher"))


def _sizes_at(by_place: Sequence[dict[Hashable, int]], quantile: float) -> dict[Hashable, int]:
    places = {place for sizes in by_place for place in sizes}
    return {place: _size_at([sizes.get(place, 0) for sizes in by_place], quantile) for place in places}


def _places(profile: Profile) -> dict[int, Hashable]:
    """Where each storage of the step is made, by its number."""
    marks = dict(profile.marks)
    places: dict[int, Hashable] = {}
    last, since = None, 0
    for position, (number, delta) in enumerate(zip(profile.numbers, profile.deltas, strict=True)):
        if position in marks:
            last, since = marks[position], 0
        elif delta > 0:
            places[int(number)] = (last, since)
            since += 1
    return places


def _bytes_by_place(profile: Profile) -> dict[Hashable, int]:
    places = _places(profile)
    made = zip(profile.numbers, profile.deltas, strict=True)
    return {places[int(number)]: int(delta) for number, delta in made if delta > 0}


def _clock_at(profiles: Sequence[Profile], most: Profile, quantile: float) -> NDArray[np.float64]:
    """Seconds at each event: of each interval between marks that all have the quantile, evenly inside."""
    positions = [{what: position for position, what in each.marks} for each in profiles]
    common = [(position, what) for position, what in most.marks if all(what in each for each in positions)]
    at = np.array(
        [
            [each.clock[0], *(each.clock[own[what]] for _, what in common), each.clock[-1]]
            for each, own in zip(profiles, positions, strict=True)
        ]
    )
    steps = np.quantile(np.maximum(np.diff(at, axis=1), 0), quantile, axis=0)
    end = len(most.deltas)
    known = [0, *(position for position, _ in common), end]
    return np.interp(np.arange(end + 1), known, np.concatenate([[0.0], np.cumsum(steps)]))
