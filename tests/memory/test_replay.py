"""Replays against models of allocators: small stories whose outcome follows from each allocator's rules."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oarlock.memory import ALLOCATORS, Trace, min_capacity, replay

MIB = 1 << 20


def story(*steps: str) -> Trace:
    """ "a 10" allocates 10 MiB as a, "a 10 @1" on stream 1, "a 1k" 1 KiB, "-a" frees it, "a>1": stream 1 uses it."""
    numbers: dict[str, int] = {}
    owners: dict[str, int] = {}
    rows = []
    count = 0
    for step in steps:
        if step.startswith("-"):
            name = step[1:]
            rows.append((1, numbers.pop(name), 0, owners[name]))
        elif ">" in step:
            name, stream = step.split(">")
            rows.append((2, numbers[name], 0, int(stream)))
        else:
            name, size, *stream = step.split()
            numbers[name], owners[name] = count, int(stream[0][1:]) if stream else 0
            rows.append((0, count, int(size[:-1]) << 10 if size.endswith("k") else int(size) * MIB, owners[name]))
            count += 1
    action, number, size, stream = np.array(rows, np.int64).T
    return Trace(
        action.astype(np.uint8),
        number.astype(np.uint32),
        size.copy(),
        stream.astype(np.uint32),
        np.zeros(len(rows), np.uint16),
    )


HOLES = story("a 40", "b 40", "c 40", "d 40", "-a", "-c", "e 80")
"""80 MiB are free, in two pieces; 160 MiB are live at most."""


def test_only_what_moves_pages_or_data_serves_scattered_memory() -> None:
    peak = HOLES.peak_bytes()
    assert peak == 160 * MIB
    expected = {"oarlock": 160, "memmove": 160, "expandable-20": 160, "expandable-12": 168, "caching": 160}
    for allocator, least in expected.items():
        assert min_capacity(HOLES, allocator) == least * MIB, allocator
    ours, theirs = replay(HOLES, "oarlock", peak), replay(HOLES, "expandable-20", peak)
    assert (ours.churn_bytes, ours.num_device_syncs) == (160 * MIB, 0)  # 40 pages out and in
    assert (theirs.churn_bytes, theirs.num_stream_syncs) == (160 * MIB, 1)
    memmove = replay(HOLES, "memmove", peak)
    assert (memmove.copied_bytes, memmove.num_device_syncs) == (80 * MIB, 2)
    assert replay(HOLES, "caching", peak).num_device_syncs == 1  # two whole segments go back, one comes


def test_a_live_piece_in_each_segment_keeps_the_caching_allocator_from_giving_back() -> None:
    steps = [f"a{i} 20" for i in range(4)] + [f"-a{i}" for i in range(4)]
    steps += [f"b{i} 11" for i in range(4)]  # each in a segment of 20 MiB, of which 9 are left
    trace = story(*steps, "c 36")
    assert trace.peak_bytes() == 80 * MIB
    assert min_capacity(trace, "caching") == 116 * MIB
    assert min_capacity(trace, "oarlock") == 80 * MIB
    assert min_capacity(trace, "memmove") == 80 * MIB


def test_pages_of_20_mib_strand_what_pages_of_2_mib_do_not() -> None:
    trace = story("a 15", "b 10", "c 15", "-b", "d 20")
    assert min_capacity(trace, "expandable-20") == 60 * MIB
    assert min_capacity(trace, "oarlock") < 54 * MIB


def test_small_requests_come_from_segments_of_2_mib() -> None:
    trace = story("a 1k", "b 20")
    assert replay(trace, "caching", 100 * MIB).peak_reserved_bytes == 22 * MIB
    assert replay(trace, "expandable-20", 100 * MIB).peak_reserved_bytes == 22 * MIB
    assert replay(story("a 1k", "b 5"), "caching", 100 * MIB).peak_reserved_bytes == 22 * MIB
    assert replay(story("a 1k", "b 5"), "oarlock", 100 * MIB).peak_reserved_bytes == 8 * MIB


def test_memory_that_another_stream_uses_comes_back_when_that_is_done() -> None:
    trace = story("a 20", "a>1", "-a", "b 20")
    for allocator in ("caching", "expandable-20", "memmove"):
        assert replay(trace, allocator, 60 * MIB, lag=10).peak_reserved_bytes == 40 * MIB
        assert replay(trace, allocator, 60 * MIB, lag=0).peak_reserved_bytes == 20 * MIB
        assert replay(trace, allocator, 20 * MIB, lag=10).finished  # it waits
    ours = replay(trace, "oarlock", 20 * MIB, lag=10)  # stream 0 waits for stream 1, the host does not
    assert (ours.finished, ours.num_device_syncs, ours.num_stream_syncs) == (True, 0, 0)
    scattered = story("a 10", "b 10", "c 10", "-a", "-c", "d 20")  # pages move once their stream is done with them
    assert replay(scattered, "oarlock", 30 * MIB, lag=10).num_stream_syncs > 0
    assert replay(scattered, "oarlock", 30 * MIB, lag=0).num_stream_syncs == 0


def test_free_memory_of_one_stream_serves_another_only_in_the_pool() -> None:
    trace = story("a 20", "-a", *["x 1k", "-x"] * 300, "b 20 @1")
    assert replay(trace, "caching", 100 * MIB).peak_reserved_bytes == 42 * MIB
    assert replay(trace, "expandable-20", 100 * MIB).peak_reserved_bytes == 42 * MIB
    assert replay(trace, "oarlock", 100 * MIB).peak_reserved_bytes == 22 * MIB


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), num_streams=st.sampled_from([1, 3]), lag=st.sampled_from([0, 5, 1000]))
def test_what_holds_for_every_allocator(seed: int, num_streams: int, lag: int) -> None:
    choose = np.random.default_rng(seed)
    rows, live, count = [], [], 0
    for _ in range(300):
        if not live or choose.random() < 0.55:
            live.append((count, int(choose.integers(num_streams))))
            rows.append((0, count, int(2 ** choose.uniform(9, 26)), live[-1][1]))
            count += 1
        else:
            number, stream = live.pop(int(choose.integers(len(live))))
            if choose.random() < 0.2:
                rows.append((2, number, 0, (stream + 1) % num_streams))
            rows.append((1, number, 0, stream))
    action, number, size, stream = np.array(rows, np.int64).T
    zeros = np.zeros(len(rows), np.uint16)
    trace = Trace(action.astype(np.uint8), number.astype(np.uint32), size.copy(), stream.astype(np.uint32), zeros)
    peak = trace.peak_bytes(256)
    for allocator in ALLOCATORS:
        ample = replay(trace, allocator, 1 << 40, lag=lag)
        assert ample.finished
        assert ample.churn_bytes == ample.num_rounds == 0
        assert ample.peak_reserved_bytes >= peak
        least = min_capacity(trace, allocator, lag=lag)
        tight = replay(trace, allocator, least, lag=lag)
        assert tight.finished
        assert peak <= tight.peak_reserved_bytes <= least
        failed = replay(trace, allocator, max(least // 2, 20 * MIB), lag=lag)
        if peak > max(least // 2, 20 * MIB):
            assert failed.failed_at is not None
            assert trace.action[failed.failed_at] == 0


def test_arguments_that_cannot_be() -> None:
    trace = story("a 1")
    for arguments, message in (
        ({"allocator": "tape", "capacity": 1 << 30}, "one of oarlock, caching"),
        ({"allocator": "oarlock", "capacity": 1}, "at least a page"),
        ({"allocator": "oarlock", "capacity": 1 << 30, "page_bytes": 3 * MIB}, "power of two"),
        ({"allocator": "caching", "capacity": 1 << 30, "lag": -1}, "lag must not be negative"),
    ):
        with pytest.raises(ValueError, match=message):
            replay(trace, **arguments)
