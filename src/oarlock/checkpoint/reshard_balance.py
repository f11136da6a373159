"""Who sends what to whom: bytes that several ranks hold are shared out, so that the busiest sender has little to do.

What receivers need is told as bytes per set of holders. Jobs with the fewest possible senders are placed first; one
with several fills up the least busy of them, as water would. Senders on the receiver's own machine are preferred.
"""

from collections.abc import Mapping, Sequence

WHOLE_BYTES = 64 << 10
"""A job up to this size is not divided."""

Needs = Mapping[tuple[int, int], int]
"""(phase, index of a set of holders) -> bytes that a receiver lacks."""
Quotas = dict[tuple[int, int], dict[int, int]]
"""(phase, index of a set of holders) -> sender -> bytes that it gives."""


def balance(needs: Sequence[Needs], holders: Sequence[tuple[int, ...]], places: Sequence[str]) -> list[Quotas]:
    """The quotas of every receiver; the same on every rank.

    Args:
        needs: per receiver.
        holders: the sets of ranks.
        places: per rank, the machine that it is on.
    """
    jobs = []
    for receiver, wanted in enumerate(needs):
        for (phase, index), num_bytes in wanted.items():
            near = [rank for rank in holders[index] if places[rank] == places[receiver]]
            jobs.append((phase, index, receiver, num_bytes, near or list(holders[index])))
    jobs.sort(key=lambda job: (len(job[4]), -job[3]))
    loads: dict[int, list[int]] = {}
    quotas: list[Quotas] = [{} for _ in needs]
    for phase, index, receiver, num_bytes, senders in jobs:
        load = loads.setdefault(phase, [0] * len(needs))
        shares = fill_up(num_bytes, senders, load)
        for rank, share in shares.items():
            load[rank] += share
        quotas[receiver][phase, index] = shares
    return quotas


def fill_up(num_bytes: int, senders: Sequence[int], loads: Sequence[int]) -> dict[int, int]:
    """Divide bytes so that the highest load among the senders that get some is as low as possible."""
    ordered = sorted(senders, key=lambda rank: (loads[rank], rank))
    if num_bytes <= WHOLE_BYTES:
        return {ordered[0]: num_bytes}
    count = 1  # of senders that the level reaches
    while count < len(ordered) and num_bytes > sum(loads[ordered[count]] - loads[rank] for rank in ordered[:count]):
        count += 1
    level, rest = divmod(num_bytes + sum(loads[rank] for rank in ordered[:count]), count)
    shares = {rank: level + (k < rest) - loads[rank] for k, rank in enumerate(ordered[:count])}
    return {rank: share for rank, share in shares.items() if share}
