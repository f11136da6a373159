"""Fewer keys to send by swapping pairs of chunks, at equal numbers of chunks and a bounded cost of every rank.

What a swap saves is the sum of what its two moves would save alone, which is exact but where the two chunks see common
keys; so the best pairs by that sum are counted exactly before they are swapped.

Legend: C chunks, R ranks.
"""

from __future__ import annotations

import numpy as np

_TRIED = 64
"""Best pairs that are counted exactly in a round."""
_ROUNDS, _WORK = 64, 1 << 23
"""Rounds at most, and rounds x C^2 at most (but 4 rounds): planning must not take long."""


def fewer_keys(
    owner_C: np.ndarray, sizes: np.ndarray, costs: np.ndarray, needs: np.ndarray, num_ranks: int, slack: float
) -> np.ndarray:
    """The same numbers of chunks to each rank, with no more keys to send.

    Args:
        owner_C: the rank of each chunk.
        sizes: int64 [C], rows.
        costs: int64 [C], visible pairs.
        needs: bool [C, C], whether the rows of a chunk see keys of another.
        slack: no rank gets beyond (1 + slack) x the mean cost, unless it is there already.
    """
    state = _State(owner_C, sizes, costs, needs, num_ranks, slack)
    for _ in range(min(_ROUNDS, max(4, _WORK // max(len(sizes), 1) ** 2))):
        if not state.swap_best_pairs():
            break
    return state.owner


class _State:
    def __init__(
        self, owner: np.ndarray, sizes: np.ndarray, costs: np.ndarray, needs: np.ndarray, num_ranks: int, slack: float
    ) -> None:
        self.owner, self.sizes, self.costs, self.needs = owner.copy(), sizes, costs, needs
        self.load = np.bincount(owner, weights=costs, minlength=num_ranks)
        self.most = max(self.load.mean() * (1 + slack), self.load.max())
        self.needs_float = needs.astype(np.float32)
        self.ranks = np.arange(num_ranks)
        self.asked = np.array([self._asked(owner == rank) for rank in self.ranks])

    def swap_best_pairs(self) -> int:
        """One round, in which a rank takes part in one swap at most; returns the number of swaps."""
        saved = self._saved_by_pairs()
        best = np.argpartition(-saved, _TRIED, axis=None)[:_TRIED] if saved.size > _TRIED else np.arange(saved.size)
        best = best[np.argsort(-saved.flat[best], kind="stable")]
        busy: set[int] = set()
        swaps = 0
        for place in best:
            one, other = divmod(int(place), len(self.owner))
            if saved[one, other] <= 0:
                break
            ranks = (int(self.owner[one]), int(self.owner[other]))
            if busy.isdisjoint(ranks) and self._swap(one, other, ranks):
                busy.update(ranks)
                swaps += 1
        return swaps

    def _saved_by_pairs(self) -> np.ndarray:
        """Keys that a swap saves if the two moves are looked at alone; -inf where it is not allowed: [C, C]."""
        owner, sizes, costs = self.owner, self.sizes, self.costs
        own_CR = owner[:, None] == self.ranks
        users_RC = own_CR.T.astype(np.float32) @ self.needs_float  # chunks of a rank that see a chunk's keys
        sees_itself = np.diag(self.needs)
        # To come to a rank: keys that nobody there sees yet; its own keys, if seen there, need not be sent any more.
        new_RC = np.where((users_RC == 0) & ~own_CR.T, sizes, 0).astype(np.float32)
        added_CR = self.needs_float @ new_RC.T - new_RC.T * sees_itself[:, None]
        added_CR -= np.where((users_RC.T > 0) & ~own_CR, sizes[:, None], 0)
        # To leave one: keys that nobody else there sees; its own must be sent if somebody else there sees them.
        only = self.needs & (users_RC[owner] == 1) & (owner[:, None] != owner)
        gone_C = only.astype(np.float32) @ sizes.astype(np.float32)
        others_C = users_RC[owner, np.arange(len(owner))] - sees_itself
        saved_C = gone_C - np.where(others_C > 0, sizes, 0)
        to_owner = added_CR[:, owner]
        saved = saved_C[:, None] + saved_C - to_owner - to_owner.T
        moved = costs[:, None] - costs
        load = self.load[owner]
        allowed = (owner[:, None] < owner) & (load[:, None] - moved <= self.most) & (load + moved <= self.most)
        return np.where(allowed, saved, -np.inf)

    def _swap(self, one: int, other: int, ranks: tuple[int, int]) -> bool:
        """Swap two chunks if that saves keys."""
        owner = self.owner
        owner[one], owner[other] = ranks[1], ranks[0]
        asked = [self._asked(owner == rank) for rank in ranks]
        if sum(asked) >= self.asked[list(ranks)].sum():
            owner[one], owner[other] = ranks
            return False
        moved = self.costs[one] - self.costs[other]
        self.load[ranks[0]] -= moved
        self.load[ranks[1]] += moved
        self.asked[list(ranks)] = asked
        return True

    def _asked(self, mine: np.ndarray) -> int:
        """Keys in chunks that some rows of these chunks see, without these chunks' own."""
        return int(self.sizes[self.needs[mine].any(0) & ~mine].sum())
