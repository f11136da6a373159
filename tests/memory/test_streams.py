"""Streams: memory is neither reused nor moved before the work that uses it is done. Simulated streams."""

import pytest

from oarlock.memory import OutOfMemoryError, Pool

PAGE = 4096
A, B, C = 11, 22, 33


@pytest.fixture
def pool():
    with Pool(4 * PAGE, driver="sim", page_bytes=PAGE) as pool:
        yield pool
        pool.check()


def test_the_same_stream_reuses_at_once_and_another_when_it_is_done(pool: Pool) -> None:
    pool.hold(A)
    first = pool.malloc(PAGE, stream=A)
    pool.free(first, stream=A)
    assert pool.malloc(PAGE, stream=A) == first
    pool.free(first, stream=A)
    other = pool.malloc(PAGE, stream=B)
    assert other != first
    pool.hold(A, False)
    pool.free(other, stream=B)
    assert {pool.malloc(PAGE, stream=C), pool.malloc(PAGE, stream=C)} == {first, other}
    assert pool.stats().num_waits == 0


def test_a_recorded_stream_blocks_the_block_and_both_halves(pool: Pool) -> None:
    pool.hold(B)
    addr = pool.malloc(2 * PAGE, stream=A)
    pool.record_stream(addr, B)
    pool.free(addr, stream=A)
    half = pool.malloc(PAGE, stream=B)  # B may: its own order makes it safe, and A is done
    assert half == addr
    assert pool.malloc(PAGE, stream=A) == addr + 2 * PAGE  # the other half is still B's
    pool.free(half, stream=B)
    blocks = [block for block in pool.blocks() if block.state == "free"]
    assert [(block.size, block.blocked) for block in blocks] == [(2 * PAGE, True)]
    pool.hold(B, False)
    assert pool.malloc(2 * PAGE, stream=C) == addr


def test_a_merge_keeps_the_uses_of_both(pool: Pool) -> None:
    pool.hold(A)
    pool.hold(B)
    left, right = pool.malloc(PAGE, stream=A), pool.malloc(PAGE, stream=B)
    pool.free(left, stream=A)
    pool.free(right, stream=B)
    pool.hold(A, False)
    fresh = pool.malloc(2 * PAGE, stream=A)
    assert fresh == left + 2 * PAGE  # B still holds the merged block
    pool.hold(B, False)
    assert pool.malloc(2 * PAGE, stream=A) == left


def test_a_free_on_a_third_stream_waits_for_owner_and_freer(pool: Pool) -> None:
    pool.hold(A)
    pool.hold(C)
    addr = pool.malloc(PAGE, stream=A)
    pool.free(addr, stream=C)
    for held in (A, C):
        assert pool.malloc(PAGE, stream=B) != addr
        pool.hold(held, False)
    assert pool.malloc(PAGE, stream=B) == addr


def test_pages_in_use_by_a_stream_move_only_after_a_wait(pool: Pool) -> None:
    addresses = [pool.malloc(PAGE, stream=A) for _ in range(4)]
    pool.hold(A)
    pool.free(addresses[0], stream=A)
    pool.free(addresses[2], stream=A)
    assert pool.largest(stream=A) == PAGE  # even on the same stream: unmapping does not wait for kernels
    asked = []
    pool.set_pressure(lambda size, stream: asked.append((size, stream)))
    pool.malloc(2 * PAGE, stream=A)
    assert asked == [(2 * PAGE, A)]  # relief is asked for before anything waits
    stats = pool.stats()
    assert (stats.num_waits, stats.moved_pages) == (2, 2)


def test_a_failure_names_what_events_block(pool: Pool) -> None:
    addresses = [pool.malloc(PAGE, stream=A) for _ in range(4)]
    pool.hold(A)
    pool.free(addresses[0], stream=A)
    pool.free(addresses[2], stream=A)
    pool.fail_calls(0, 10**9)  # waiting fails too
    with pytest.raises(OutOfMemoryError, match=r"wait for the streams that block 8\.00 KiB"):
        pool.malloc(2 * PAGE, stream=A)
    pool.fail_calls(0, 0)


def test_the_pressure_callback_may_free_and_allocate(pool: Pool) -> None:
    cache = [pool.malloc(PAGE) for _ in range(4)]
    sizes = []

    def evict(size: int, _stream: int) -> bool:
        sizes.append(size)
        pool.free(cache.pop())
        pool.free(pool.malloc(512))
        return True

    pool.set_pressure(evict)
    pool.malloc(2 * PAGE)
    assert sizes == [2 * PAGE] * 2
    assert len(cache) == 2


def test_what_the_callback_raises_is_the_cause(pool: Pool) -> None:
    pool.malloc(4 * PAGE)

    def broken(_size: int, _stream: int) -> bool:
        raise KeyError("evictor")

    pool.set_pressure(broken)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.malloc(PAGE)
    assert isinstance(caught.value.__cause__, KeyError)
    pool.set_pressure(lambda _size, _stream: True)  # promises for ever
    with pytest.raises(OutOfMemoryError):
        pool.malloc(PAGE)
    assert pool.stats().num_pressure_calls == 1 + 8
    pool.set_pressure(None)


def test_blocks_are_consistent_while_frees_are_pending(pool: Pool) -> None:
    pool.hold(B)
    addresses = [pool.malloc(1024, stream=A) for _ in range(8)]
    for addr in addresses[::2]:
        pool.record_stream(addr, B)
        pool.free(addr, stream=A)
    blocks = pool.blocks()
    assert sum(block.state == "live" for block in blocks) == 4
    assert sum(block.blocked for block in blocks) == 4
    ends = {block.addr + block.size for block in blocks}
    assert sum(block.addr not in ends for block in blocks) == 1  # one reservation, without a gap


def test_at_the_limit_a_stream_waits_for_another_and_the_host_for_nobody(pool: Pool) -> None:
    """Where pages would have to move, the request gets memory that other streams still use, behind their work."""
    pool.hold(B)
    addresses = [pool.malloc(PAGE, stream=B) for _ in range(4)]
    pool.free(addresses[1], stream=B)
    assert pool.malloc(PAGE, stream=A) == addresses[1]
    stats = pool.stats()
    assert (stats.num_ordered, stats.num_waits, stats.moved_pages) == (1, 0, 0)
    pool.free(addresses[1], stream=A)
    # A's work on it begins after what B has queued: C, which is behind neither, waits for both.
    assert [block.blocked for block in pool.blocks() if block.addr == addresses[1]] == [True]
    assert pool.malloc(PAGE, stream=C) == addresses[1]
    assert pool.stats().num_ordered == 2
    pool.free(addresses[1], stream=C)
    pool.hold(B, False)
    assert pool.malloc(PAGE, stream=A) == addresses[1]
    assert pool.stats().num_ordered == 2


def test_while_memory_is_left_no_stream_waits_for_another(pool: Pool) -> None:
    pool.hold(B)
    used = pool.malloc(PAGE, stream=B)
    pool.free(used, stream=B)
    assert pool.malloc(PAGE, stream=A) != used
    assert pool.stats().num_ordered == 0


def test_where_a_stream_cannot_be_told_to_wait_the_host_waits(pool: Pool) -> None:
    addresses = [pool.malloc(PAGE, stream=B) for _ in range(4)]
    pool.hold(B)
    pool.free(addresses[1], stream=B)
    pool.free(addresses[3], stream=B)
    pool.fail_calls(1, 1)  # the state of the event comes first
    assert pool.malloc(PAGE, stream=A) in (addresses[1], addresses[3])
    assert (pool.stats().num_ordered, pool.stats().num_waits) == (0, 1)
