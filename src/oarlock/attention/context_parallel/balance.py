"""Which rank gets which chunk: equal numbers of chunks, equal cost, and few keys to send.

Chunks are dealt out by one of these methods, and for the last two then swapped in pairs until the costs are even:

* contiguous: neighbouring chunks stay together;
* dualchunk: rank r gets the r-th piece from the front and the r-th from the back (zigzag), even for plain causal;
* lpt: the costliest chunk first, each to the rank with least cost so far (longest processing time);
* affinity: rank by rank, the costliest chunk left and then whichever asks for fewest new keys, as long as what is
  left can still give every rank an equal share, up to 2 %; last, pairs that save keys are swapped;
* auto: the one of these that asks for fewest keys among those that are balanced up to 4 %.

All are deterministic: ties go to the lower chunk and the lower rank.

Legend: C chunks, R ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from oarlock.attention.context_parallel.swaps import fewer_keys

METHODS = ("auto", "contiguous", "dualchunk", "lpt", "affinity")
SLACK, ENOUGH = 0.02, 0.04
"""Excess of the highest cost over the mean up to which `affinity` and `auto` prefer fewer keys to a better balance."""


@dataclass(frozen=True, eq=False)
class Chunks:
    """What is dealt out."""

    sizes: np.ndarray
    """int64 [C], rows of each chunk."""
    costs: np.ndarray
    """int64 [C], visible pairs of each chunk."""
    find_needs: Callable[[], np.ndarray] = field(repr=False)
    """bool [C, C]: whether the rows of a chunk see keys of another; asked for only by methods that look at it."""

    @cached_property
    def needs(self) -> np.ndarray:
        return self.find_needs()


def assign(chunks: Chunks, num_ranks: int, method: str) -> np.ndarray:
    """The rank of each chunk: int64 [C]; ranks get equally many chunks, up to one.

    Raises:
        ValueError: an unknown method.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r} of balancing; choose one of {', '.join(METHODS)}")
    if method != "auto":
        return _assign(chunks, num_ranks, method)
    found = [_assign(chunks, num_ranks, name) for name in METHODS[1:]]
    return min(found, key=lambda owner: _merit(owner, chunks, num_ranks))


def _assign(chunks: Chunks, num_ranks: int, method: str) -> np.ndarray:
    if method == "contiguous":
        return contiguous(len(chunks.costs), num_ranks)
    if method == "dualchunk":
        return dualchunk(len(chunks.costs), num_ranks)
    if method == "lpt":
        return refine(lpt(chunks, num_ranks), chunks.costs, num_ranks)
    owner = refine(affinity(chunks, num_ranks), chunks.costs, num_ranks, slack=SLACK)
    return fewer_keys(owner, chunks.sizes, chunks.costs, chunks.needs, num_ranks, SLACK)


def quotas(count: int, num_ranks: int) -> np.ndarray:
    """Chunks of each rank, equal up to one: int64 [R]."""
    return np.full(num_ranks, count // num_ranks) + (np.arange(num_ranks) < count % num_ranks)


def contiguous(count: int, num_ranks: int) -> np.ndarray:
    """Neighbouring chunks to one rank."""
    return np.repeat(np.arange(num_ranks), quotas(count, num_ranks))


def dualchunk(count: int, num_ranks: int) -> np.ndarray:
    """The r-th piece from the front and the r-th from the back to rank r."""
    share = quotas(count, num_ranks)
    front, back = (share + 1) // 2, share // 2
    ranks = np.arange(num_ranks)
    return np.concatenate([np.repeat(ranks, front), np.repeat(ranks[::-1], back[::-1])])


def lpt(chunks: Chunks, num_ranks: int) -> np.ndarray:
    """The costliest chunk first, each to the rank with the least cost that has room."""
    costs, room = chunks.costs, quotas(len(chunks.costs), num_ranks)
    load = np.zeros(num_ranks, np.int64)
    owner = np.empty(len(costs), np.int64)
    full = np.iinfo(np.int64).max
    load[room == 0] = full
    for chunk in np.argsort(-costs, kind="stable"):
        rank = int(load.argmin())
        owner[chunk] = rank
        room[rank] -= 1
        load[rank] = load[rank] + costs[chunk] if room[rank] else full
    return owner


def affinity(chunks: Chunks, num_ranks: int) -> np.ndarray:
    """Rank by rank: the costliest chunk that is left, then those that ask for the fewest new keys.

    A chunk is eligible if the cheapest and the costliest chunks that would be left enclose what the rank then lacks.
    """
    owner = np.full(len(chunks.costs), -1)
    share = quotas(len(chunks.costs), num_ranks)
    target = chunks.costs.sum() / num_ranks
    for rank in range(num_ranks):
        _fill(owner, rank, int(share[rank]), target, chunks)
    return owner


def _fill(owner: np.ndarray, rank: int, quota: int, target: float, chunks: Chunks) -> None:
    """Choose the chunks of one rank among those without owner."""
    sizes, costs, needs = chunks.sizes, chunks.costs, chunks.needs
    left = np.flatnonzero(owner < 0)
    left = left[np.argsort(costs[left], kind="stable")]  # ascending cost
    seen = np.zeros(len(costs), bool)
    mine = np.zeros(len(costs), bool)
    new_keys = needs[left] @ sizes  # keys that a chunk would add to those that the rank sees
    lacking = target
    for missing in range(quota - 1, -1, -1):
        cost = costs[left]
        total = np.concatenate([[0], np.cumsum(cost)])
        place = np.arange(len(left))
        # the cheapest and costliest `missing` of the others
        cheapest = np.where(place < missing, total[min(missing + 1, len(left))] - cost, total[missing])
        costliest = np.where(
            place >= len(left) - missing,
            total[-1] - total[max(len(left) - missing - 1, 0)] - cost,
            total[-1] - total[len(left) - missing],
        )
        rest = lacking - cost
        violation = np.maximum(cheapest - rest, rest - costliest).clip(min=0)
        eligible = violation <= max(violation.min(), SLACK * target)
        # own keys need not be sent; among equals the costliest, which is the hardest to place
        price = new_keys - np.where(seen[left], sizes[left], 0) if mine.any() else np.zeros(len(left), np.int64)
        choice = len(left) - 1 - int(np.where(eligible, price, np.iinfo(np.int64).max)[::-1].argmin())
        chunk = left[choice]
        owner[chunk], mine[chunk] = rank, True
        lacking -= costs[chunk]
        added = needs[chunk] & ~seen
        added[chunk] = not seen[chunk]
        seen |= added
        left, new_keys = np.delete(left, choice), np.delete(new_keys, choice)
        new_keys = new_keys - needs[np.ix_(left, np.flatnonzero(added))] @ sizes[added]


def refine(owner: np.ndarray, costs: np.ndarray, num_ranks: int, slack: float = 0.0) -> np.ndarray:
    """Swap pairs of chunks between the costliest rank and cheaper ones while that lowers the higher of the two costs.

    Each swap is the one that brings the two ranks closest together; none where the costliest is within ``slack``.
    """
    owner = owner.copy()
    load = np.bincount(owner, weights=costs, minlength=num_ranks).astype(np.int64)
    enough = load.sum() / num_ranks * (1 + slack)
    for _ in range(len(costs) + 8 * num_ranks):
        high = int(load.argmax())
        if load[high] <= enough or not any(
            _swap(owner, costs, load, high, int(low)) for low in np.argsort(load, kind="stable")
        ):
            break
    return owner


def _swap(owner: np.ndarray, costs: np.ndarray, load: np.ndarray, high: int, low: int) -> bool:
    """Swap the best pair of two ranks in place; False if no pair makes the costlier one cheaper than it was."""
    gap = load[high] - load[low]
    if gap <= 1:
        return False
    ours, theirs = np.flatnonzero(owner == high), np.flatnonzero(owner == low)
    if not len(ours) or not len(theirs):
        return False
    theirs = theirs[np.argsort(costs[theirs], kind="stable")]
    wanted = costs[ours] - gap / 2  # the cost to get for each of ours
    at = np.searchsorted(costs[theirs], wanted)
    candidates = np.stack([np.maximum(at - 1, 0), np.minimum(at, len(theirs) - 1)])
    moved = costs[ours] - costs[theirs[candidates]]
    distance = np.where((moved > 0) & (moved < gap), np.abs(2 * moved - gap), gap)
    best = int(distance.argmin())
    if distance.flat[best] >= gap:
        return False
    side, index = divmod(best, len(ours))
    mine, other = ours[index], theirs[candidates[side, index]]
    owner[mine], owner[other] = low, high
    load[high] -= moved.flat[best]
    load[low] += moved.flat[best]
    return True


def _merit(owner: np.ndarray, chunks: Chunks, num_ranks: int) -> tuple[float, int]:
    """Less is better: excess of the highest cost beyond what is good enough, then keys to send."""
    load = np.bincount(owner, weights=chunks.costs, minlength=num_ranks)
    excess = load.max() * num_ranks / max(load.sum(), 1) - 1
    return max(excess - ENOUGH, 0.0), asked_keys(owner, chunks, num_ranks)


def asked_keys(owner: np.ndarray, chunks: Chunks, num_ranks: int) -> int:
    """Keys in chunks that a rank sees any of and does not hold, over all ranks."""
    keys = 0
    for rank in range(num_ranks):
        mine = owner == rank
        keys += int(chunks.sizes[chunks.needs[mine].any(0) & ~mine].sum())
    return keys
