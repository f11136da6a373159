"""Places of a tier: none overlaps another, whoever drops them, whenever; what dies is joined again."""

import gc
import random
import threading
from itertools import pairwise

from oarlock.memory.offload import HostTier
from oarlock.memory.offload.tiers import Place


def test_places_that_die_in_any_thread_at_any_time_never_overlap() -> None:
    """Half of them die in the garbage collector, which may run in the middle of another `take`."""
    kept: list[Place] = []

    def work(seed: int) -> None:
        draw = random.Random(seed)
        live: list[Place] = []
        for _ in range(1500):
            place = tier.take(draw.choice([1, 4096, 9000, 40960]))
            cycle: list[object] = [place]
            if draw.random() < 0.5:
                cycle.append(cycle)
            else:
                live.append(place)
            if len(live) > 30:
                live.pop(draw.randrange(30))
        kept.extend(live)

    threshold = gc.get_threshold()
    gc.set_threshold(5)
    try:
        with HostTier() as tier:
            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            places = sorted((place.offset, place.num_bytes) for place in kept)
            assert len(places) == 4 * 30
            assert all(offset + num_bytes <= after for (offset, num_bytes), (after, _) in pairwise(places))
            kept.clear()
            gc.collect()
            assert tier.used_bytes == 0
            tier.capacity = tier.take(1).offset + tier.peak_bytes
            tier.take(tier.capacity)  # all of it is one hole again
    finally:
        gc.set_threshold(*threshold)


def test_a_place_grows_over_the_end_of_a_tier_with_a_capacity() -> None:
    with HostTier(capacity=8 * 4096) as tier:
        first, second = tier.take(4096), tier.take(4096)
        del second
        assert tier.take(7 * 4096).offset == 4096  # the last hole and what is behind it
        assert first.offset == 0
