"""Sleep and wake by tag, and pins."""

import ctypes

import pytest

from oarlock.memory import OutOfMemoryError, Pool

PAGE = 4096


@pytest.fixture(params=["sim", "host", "host_memfd"])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


def test_contents_and_addresses_survive_sleep(driver: str) -> None:
    with Pool(16 * PAGE, driver=driver, page_bytes=PAGE) as pool:
        weights = {pool.malloc(size, tag=1): size for size in (100, 700, PAGE, 3 * PAGE + 512, 5000)}
        if driver != "sim":
            for i, (addr, size) in enumerate(weights.items()):
                ctypes.memset(addr, i + 1, size)
        other = pool.malloc(2 * PAGE)
        pool.sleep(1)
        pool.check()
        assert pool.stats().reserved_bytes == 2 * PAGE
        assert pool.stats().asleep_bytes == pool.stats().live_bytes - 2 * PAGE
        with pytest.raises(ValueError, match="asleep"):
            pool.malloc(100, tag=1)
        rest = pool.malloc(14 * PAGE)  # all of the device
        with pytest.raises(OutOfMemoryError):
            pool.wake(1)
        pool.free(rest)
        pool.sleep(1)  # sleeps already
        pool.wake(1)
        pool.wake(1)
        pool.check()
        if driver != "sim":
            for i, (addr, size) in enumerate(weights.items()):
                assert ctypes.string_at(addr, size) == bytes([i + 1]) * size
        for addr in (*weights, other):
            pool.free(addr)


def test_frees_during_sleep(driver: str) -> None:
    with Pool(16 * PAGE, driver=driver, page_bytes=PAGE) as pool:
        addresses = [pool.malloc(PAGE + 1024, tag=5) for _ in range(6)]
        pool.sleep(5, keep=False)
        for addr in addresses[1:5]:
            pool.free(addr)
        pool.check()
        assert pool.malloc(PAGE) not in addresses
        pool.wake(5)
        pool.check()
        assert pool.stats().reserved_bytes == PAGE + 4 * PAGE  # two pages under each of the two that are left
        for addr in (addresses[0], addresses[5]):
            pool.free(addr)
        pool.check()


def test_pinned_memory_stays_through_sleep_and_free(driver: str) -> None:
    with Pool(16 * PAGE, driver=driver, page_bytes=PAGE) as pool:
        addresses = [pool.malloc(PAGE + 1024, tag=1) for _ in range(6)]
        pool.pin(addresses[2], "exported to process 17")
        if driver != "sim":
            ctypes.memset(addresses[2], 9, PAGE + 1024)
        pool.sleep(1)
        assert pool.stats().reserved_bytes == 2 * PAGE or pool.stats().reserved_bytes == 3 * PAGE
        pool.check()
        if driver != "sim":
            assert ctypes.string_at(addresses[2], PAGE + 1024) == b"\t" * (PAGE + 1024)
        pool.wake(1)
        pool.check()
        pool.free(addresses[2])
        pool.unpin(addresses[2])
        pool.check()


def test_a_freed_pinned_block_is_neither_reused_nor_moved(driver: str) -> None:
    with Pool(4 * PAGE, driver=driver, page_bytes=PAGE) as pool:
        addresses = [pool.malloc(PAGE) for _ in range(4)]
        pool.pin(addresses[1], "captured in a CUDA graph")
        pool.pin(addresses[1], "captured in a CUDA graph")
        pool.free(addresses[1])
        pool.free(addresses[3])
        assert (pool.stats().held_bytes, pool.stats().pinned_bytes) == (PAGE, PAGE)
        assert pool.malloc(PAGE) == addresses[3]
        with pytest.raises(OutOfMemoryError, match=r"unpin 4\.00 KiB .*captured in a CUDA graph"):
            pool.malloc(PAGE)
        with pytest.raises(ValueError, match="not a live allocation"):
            pool.free(addresses[1])
        pool.unpin(addresses[1])
        with pytest.raises(OutOfMemoryError):
            pool.malloc(PAGE)
        pool.unpin(addresses[1])
        with pytest.raises(ValueError, match="not a pinned"):
            pool.unpin(addresses[1])
        assert pool.malloc(PAGE) == addresses[1]
        pool.check()


def test_wake_moves_pages_and_asks_for_relief(driver: str) -> None:
    with Pool(8 * PAGE, driver=driver, page_bytes=PAGE) as pool:
        weights = pool.malloc(4 * PAGE, tag=1)
        pool.sleep(1)
        cache = [pool.malloc(PAGE) for _ in range(8)]
        pool.free(cache.pop(1))
        pool.free(cache.pop(4))

        def evict(_size: int, _stream: int) -> bool:
            pool.free(cache.pop())
            return True

        pool.set_pressure(evict)
        pool.wake(1)
        assert len(cache) == 4
        pool.check()
        pool.free(weights)


def test_an_unknown_tag() -> None:
    with Pool(8 * PAGE, driver="sim", page_bytes=PAGE) as pool:
        for act in (pool.sleep, pool.wake):
            with pytest.raises(ValueError, match="tag 3"):
                act(3)
