"""Where allocations go: growth, reuse, moved pages, and what is said when nothing is left."""

import pytest

from oarlock.memory import OutOfMemoryError, Pool

PAGE = 4096
DRIVERS = ["sim", "host", "host_memfd"]


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


def fill(pool: Pool, num_pages: int) -> list[int]:
    """One allocation per page."""
    return [pool.malloc(PAGE) for _ in range(num_pages)]


def test_two_allocations_and_a_reuse(driver: str) -> None:
    with Pool(16 * PAGE, driver=driver, page_bytes=PAGE) as pool:
        first, second = pool.malloc(100), pool.malloc(PAGE)
        assert first % 512 == second % 512 == 0
        assert pool.stats().live_bytes == 512 + PAGE
        assert pool.stats().requested_bytes == 100 + PAGE
        pool.free(first)
        assert pool.malloc(512) == first
        pool.check()


def test_sizes_at_the_edges(driver: str) -> None:
    with Pool(16 * PAGE, driver=driver, page_bytes=PAGE) as pool:
        assert pool.malloc(0) == 0
        pool.free(0)
        addresses = [pool.malloc(size) for size in (1, 511, 512, 513, PAGE - 1, PAGE, PAGE + 1)]
        assert all(addr % 512 == 0 for addr in addresses)
        for size in (16 * PAGE + 1, 2**63, 2**64 - 1, 2**64 - 512, 2**70):
            with pytest.raises(OutOfMemoryError, match="requested of a pool of"):
                pool.malloc(size)
        for addr in addresses:
            pool.free(addr)
        assert pool.largest() == 16 * PAGE
        pool.free(pool.malloc(16 * PAGE))
        pool.check()
        with pytest.raises(ValueError, match="not be negative"):
            pool.malloc(-1)


def test_frees_of_what_is_not_live_are_refused(driver: str) -> None:
    with (
        Pool(4 * PAGE, driver=driver, page_bytes=PAGE) as pool,
        Pool(4 * PAGE, driver=driver, page_bytes=PAGE) as other,
    ):
        addr = pool.malloc(PAGE)
        foreign = other.malloc(PAGE)
        pool.free(addr)
        for wrong in (addr, addr + 512, 7, *([foreign] if driver != "sim" else [])):
            with pytest.raises(ValueError, match="not a live allocation"):
                pool.free(wrong)
        other.free(foreign)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"capacity": 100}, "at least a page"),
        ({"capacity": -1}, "between 0"),
        ({"page_bytes": 3000}, "power of two"),
        ({"page_bytes": 256}, "power of two"),
        ({"page_bytes": 512, "driver": "host"}, "multiple of"),
        ({"driver": "tape"}, "one of sim, host, host_memfd, cuda"),
    ],
)
def test_pools_that_cannot_be(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pool(**{"capacity": 1 << 20, "driver": "sim", **arguments})


def test_it_grows_first_and_then_moves_exactly_what_is_missing(driver: str) -> None:
    with Pool(16 * PAGE, driver=driver, page_bytes=PAGE) as pool:
        addresses = fill(pool, 10)
        for addr in addresses[::2]:
            pool.free(addr)
        pool.malloc(6 * PAGE)  # six pages are left to create: nothing moves
        assert pool.stats().moved_pages == 0
        pool.malloc(3 * PAGE)  # five free pages, none beside another
        assert (pool.stats().num_moves, pool.stats().moved_pages) == (1, 3)
        pool.check()
        assert pool.stats().free_bytes == 2 * PAGE


def test_a_soft_capacity_moves_before_it_grows(driver: str) -> None:
    with Pool(16 * PAGE, driver=driver, page_bytes=PAGE, soft_capacity=4 * PAGE) as pool:
        addresses = fill(pool, 4)
        pool.free(addresses[0])
        pool.free(addresses[2])
        pool.malloc(2 * PAGE)
        assert (pool.stats().reserved_bytes, pool.stats().moved_pages) == (4 * PAGE, 2)
        pool.malloc(2 * PAGE)
        assert pool.stats().reserved_bytes == 6 * PAGE


def test_a_hole_beside_free_memory_needs_fewer_pages(driver: str) -> None:
    with Pool(8 * PAGE, driver=driver, page_bytes=PAGE) as pool:
        addresses = fill(pool, 8)
        pool.free(addresses[1])
        pool.free(addresses[7])
        assert pool.malloc(2 * PAGE) == addresses[7]  # the last page and one behind it
        assert pool.stats().moved_pages == 1
        pool.check()


def test_a_page_that_something_lies_on_is_never_taken(driver: str) -> None:
    with Pool(4 * PAGE, driver=driver, page_bytes=PAGE) as pool:
        halves = [pool.malloc(PAGE // 2 + 512) for _ in range(6)]  # six in four pages: the large heap
        for addr in halves[::2]:
            pool.free(addr)
        with pytest.raises(OutOfMemoryError) as caught:
            pool.malloc(3 * PAGE)
        assert "stranded" in str(caught.value)
        assert "4.00 KiB more capacity" not in str(caught.value)
        pool.check()


def test_two_free_neighbours_make_a_page_that_can_move(driver: str) -> None:
    with Pool(4 * PAGE, driver=driver, page_bytes=PAGE) as pool:
        left, right, keep, last = (pool.malloc(size) for size in (3072, 4096, 5120, PAGE))
        pool.free(left)
        pool.free(right)  # the first page, made of both, and a part of the second
        pool.free(last)
        pool.malloc(2 * PAGE)
        assert pool.stats().moved_pages == 1
        pool.free(keep)
        pool.check()


def test_scattered_holes_together_are_enough_and_addresses_are_used_again() -> None:
    """One reservation of the capacity's size has only scattered holes after the pages moved: a new one is made."""
    with Pool(8 * PAGE, driver="sim", page_bytes=PAGE, reserve_factor=1) as pool:
        seen = set()
        for _ in range(50):
            addresses = fill(pool, 8)
            for addr in addresses[::2]:
                pool.free(addr)
            large = pool.malloc(4 * PAGE)
            seen.add(large)
            pool.check()
            for addr in [*addresses[1::2], large]:
                pool.free(addr)
        assert len(seen) < 10  # addresses are recycled, not used up
        assert sum(block.state == "hole" for block in pool.blocks()) < 20


def test_a_failure_says_where_the_memory_is() -> None:
    with Pool(8 << 20, driver="sim", page_bytes=1 << 20) as pool:
        addresses = [pool.malloc(3 << 19) for _ in range(5)]
        for addr in addresses[::2]:
            pool.free(addr)
        with pytest.raises(OutOfMemoryError) as caught:
            pool.malloc(5 << 20)
        message = str(caught.value)
        for part in (
            "5.00 MiB requested of a pool of 8.00 MiB (8.00 MiB from the device)",
            "with 3.00 MiB live, 5.00 MiB free, of which 1.00 MiB stranded in pages that are partly in use",
            "0 B blocked by events",
            "0 B pinned",
            "largest servable request",
            "pages smaller than 1.00 MiB",
            "1.00 MiB more capacity",
        ):
            assert part in message
        with pytest.raises(OutOfMemoryError, match=r"free 1\.00 MiB more"):
            pool.malloc(6 << 20)


def test_the_largest_request_is_served_and_a_larger_one_is_not() -> None:
    with Pool(64 << 20, driver="sim", page_bytes=1 << 20) as pool:
        addresses = [pool.malloc(size) for size in range(600_000, 5_000_000, 317_000)]
        for addr in addresses[::2]:
            pool.free(addr)
        largest = pool.largest()
        with pytest.raises(OutOfMemoryError):
            pool.malloc(largest + 512)
        pool.malloc(largest)
        pool.check()


def test_terabytes() -> None:
    with Pool(4 << 40, driver="sim") as pool:
        addresses = [pool.malloc(16 << 30) for _ in range(8)]
        for addr in addresses[::2]:
            pool.free(addr)
        pool.malloc((4 << 40) - (64 << 30))
        stats = pool.stats()
        assert stats.live_bytes == stats.reserved_bytes == 4 << 40
        assert stats.moved_pages > 0


def test_trim_gives_back_whole_pages_only(driver: str) -> None:
    with Pool(16 * PAGE, driver=driver, page_bytes=PAGE) as pool:
        addresses = fill(pool, 8)
        small = pool.malloc(512)
        for addr in addresses[:5]:
            pool.free(addr)
        pool.trim()
        assert pool.stats().reserved_bytes == 4 * PAGE
        pool.check()
        pool.free(small)
        pool.malloc(12 * PAGE)
        pool.check()
