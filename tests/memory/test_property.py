"""Random sequences of calls against a model of every byte: who owns it, what is stored there, what must succeed."""

import ctypes
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oarlock.memory import DriverError, OutOfMemoryError, Pool

PAGE = 4096
NUM_PAGES = 24
STREAMS = 3


class Model:
    """Allocations by address, in bytes; memory of "host" pools is filled with each one's number."""

    def __init__(self, pool: Pool, *, writes: bool) -> None:
        self.pool, self.writes = pool, writes
        self.live: dict[int, tuple[int, int]] = {}
        self.count = 0
        # Freed [begin, end) by stream that may still use it: the held streams that it is behind.
        self.pending: list[tuple[int, int, dict[int, set[int]]]] = []
        self.held: set[int] = set()
        self.behind: dict[int, set[int]] = {stream: set() for stream in range(STREAMS)}

    def pages_in_use(self) -> int:
        return len(
            {page for addr, (size, _) in self.live.items() for page in range(addr // PAGE, last_page(addr, size))}
        )

    def malloc(self, size: int, stream: int, tag: int) -> None:
        before = self.pool.stats()
        try:
            addr = self.pool.malloc(size, stream=stream, tag=tag)
        except OutOfMemoryError:
            # Everything else can be moved, once the streams were waited for.
            pages = -(-size // PAGE)
            assert pages + self.pages_in_use() > NUM_PAGES, "pages would have been enough"
            self.forget(range(STREAMS))
            return
        after = self.pool.stats()
        if after.num_waits > before.num_waits:
            self.pending.clear()  # a wait lets one stream get further; which one does not matter here
            self.behind = {stream: set() for stream in range(STREAMS)}
        assert after.moved_pages - before.moved_pages <= -(-size // PAGE)
        assert addr % 512 == 0
        end = addr + rounded(size)
        for other, (other_size, _) in self.live.items():
            assert end <= other or other + rounded(other_size) <= addr, "two allocations share bytes"
        rest = []
        for begin, stop, users in self.pending:
            if stop <= addr or end <= begin:
                rest.append((begin, stop, users))
                continue
            if not users.keys() <= {stream}:
                assert after.num_ordered > before.num_ordered, "memory that another stream still uses"
                for user in users.keys() - {stream}:
                    self.behind[stream] |= users[user]
            # What is taken is this stream's from here on; the parts beside it are not.
            rest += [
                (a, b, {u: set(held) for u, held in users.items()}) for a, b in ((begin, addr), (end, stop)) if a < b
            ]
        self.pending = rest
        self.count += 1
        self.live[addr] = (size, self.count % 251 + 1)
        if self.writes:
            ctypes.memset(addr, self.count % 251 + 1, size)

    def verify(self, addr: int) -> None:
        size, byte = self.live[addr]
        if self.writes:
            assert ctypes.string_at(addr, size) == bytes([byte]) * size, "live data changed"

    def free(self, addr: int, owner_and: set[int], stream: int) -> None:
        self.verify(addr)
        size, _ = self.live.pop(addr)
        users = {user: self.behind[user] | ({user} & self.held) for user in owner_and}
        self.pending.append((addr, addr + rounded(size), users))
        self.forget([])
        self.pool.free(addr, stream=stream)

    def forget(self, streams) -> None:
        for _, _, users in self.pending:
            for user in list(users):
                users[user].difference_update(streams)
                if not users[user]:
                    del users[user]
        self.pending = [entry for entry in self.pending if entry[2]]
        for held in self.behind.values():
            held.difference_update(streams)


def rounded(size: int) -> int:
    """Blocks are whole multiples of 512 bytes: a stream that got one byte has been ordered behind all of them."""
    return -(-max(size, 1) // 512) * 512


def last_page(addr: int, size: int) -> int:
    return (addr + size + PAGE - 1) // PAGE


SIZES = st.one_of(st.integers(1, 1500), st.integers(1, 3 * PAGE), st.integers(PAGE, 14 * PAGE))


@settings(max_examples=60, deadline=None)
@given(
    driver=st.sampled_from(["sim", "host", "host_memfd"]),
    factor=st.sampled_from([1, 8]),
    soft=st.sampled_from([4 * PAGE, NUM_PAGES * PAGE]),
    sizes=st.lists(SIZES, min_size=20, max_size=120),
    seed=st.integers(0, 2**32),
)
def test_bytes_streams_and_every_failure(driver: str, factor: int, soft: int, sizes: list[int], seed: int) -> None:
    choose = random.Random(seed)
    pool = Pool(NUM_PAGES * PAGE, driver=driver, page_bytes=PAGE, reserve_factor=factor, soft_capacity=soft)
    model = Model(pool, writes=driver != "sim")
    users: dict[int, set[int]] = {}
    for size in sizes:
        stream = choose.randrange(STREAMS) if driver == "sim" else 0
        model.malloc(size, stream, tag=choose.randrange(2))
        for addr in model.live:
            users.setdefault(addr, {stream})
        while model.live and choose.random() < 0.45:
            addr = choose.choice(list(model.live))
            other = choose.randrange(STREAMS) if driver == "sim" else 0
            if choose.random() < 0.3:
                pool.record_stream(addr, other)
                users[addr].add(other)
            freer = choose.choice([other, *users[addr]])
            model.free(addr, users.pop(addr) | {freer}, freer)
        if driver == "sim" and choose.random() < 0.3:
            held = choose.randrange(STREAMS)
            pool.hold(held, held not in model.held)
            model.held ^= {held}
            if held not in model.held:
                model.forget([held])
        pool.check()
        stats = pool.stats()
        assert stats.requested_bytes == sum(size for size, _ in model.live.values())
        assert stats.reserved_bytes <= NUM_PAGES * PAGE
    for addr in list(model.live):
        model.verify(addr)
        pool.free(addr)
    pool.close()


@settings(max_examples=60, deadline=None)
@given(
    driver=st.sampled_from(["sim", "host", "host_memfd"]),
    sizes=st.lists(SIZES, min_size=20, max_size=60),
    faults=st.lists(st.tuples(st.integers(0, 12), st.sampled_from([1, 2, 10**9])), min_size=1, max_size=20),
    seed=st.integers(0, 2**32),
)
def test_faults_anywhere_leave_live_data_alone(driver: str, sizes: list[int], faults: list, seed: int) -> None:
    choose = random.Random(seed)
    pool = Pool(NUM_PAGES * PAGE, driver=driver, page_bytes=PAGE)
    live: dict[int, tuple[int, int]] = {}
    for i, size in enumerate(sizes):
        pool.fail_calls(*choose.choice(faults))
        try:
            addr = pool.malloc(size, tag=i % 2)
        except (DriverError, OutOfMemoryError):
            pass
        else:
            assert all(addr + size <= a or a + n <= addr for a, (n, _) in live.items())
            live[addr] = (size, i % 251)
            if driver != "sim":
                ctypes.memset(addr, i % 251, size)
        while live and choose.random() < 0.45:
            addr = choose.choice(list(live))
            size, byte = live.pop(addr)
            if driver != "sim":
                assert ctypes.string_at(addr, size) == bytes([byte]) * size
            pool.free(addr)
        pool.check()
    pool.fail_calls(0, 0)
    pool.close()


@pytest.mark.parametrize("driver", ["sim", "host"])
def test_a_long_run_at_the_limit(driver: str) -> None:
    """Ten thousand calls with live data near the capacity."""
    choose = random.Random(7)
    num_pages = 1024
    with Pool(num_pages * PAGE, driver=driver, page_bytes=PAGE) as pool:
        live: list[int] = []
        for _ in range(10_000):
            if pool.stats().live_bytes < 0.85 * num_pages * PAGE and choose.random() < 0.6:
                live.append(pool.malloc(int(2 ** choose.uniform(9, 16))))
            elif live:
                pool.free(live.pop(choose.randrange(len(live))))
        pool.check()
        assert pool.stats().num_moves > 0
