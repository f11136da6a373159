"""The driver fails at its k-th call, for every k, once or from then on; nothing may be lost, and the pool goes on."""

from collections.abc import Callable

import pytest

from oarlock.memory import Block, DriverError, OutOfMemoryError, Pool

PAGE = 4096
FOREVER = 10**9
Prepared = tuple[Pool, Callable[[], object]]


def grow(driver: str) -> Prepared:
    """The first allocation: address space, three new pages."""
    pool = Pool(8 * PAGE, driver=driver, page_bytes=PAGE)
    return pool, lambda: pool.malloc(3 * PAGE)


def move(driver: str) -> Prepared:
    """Two donors of two pages and of one, and two new pages."""
    pool = Pool(12 * PAGE, driver=driver, page_bytes=PAGE)
    addresses = [pool.malloc(PAGE) for _ in range(10)]
    for i in (1, 2, 5):
        pool.free(addresses[i])
    return pool, lambda: pool.malloc(5 * PAGE)


def move_to_both_sides(driver: str) -> Prepared:
    """The hole that an earlier move left lies between free blocks."""
    pool, first = move(driver)
    first()
    live = [block.addr for block in pool.blocks() if block.state == "live"]
    pool.free(live[0])
    pool.free(live[1])
    pool.free(live[4])
    return pool, lambda: pool.malloc(3 * PAGE)


def wait_and_move(driver: str) -> Prepared:
    """The donors are still in use by a stream."""
    pool, last = move(driver)
    if driver == "sim":
        addr = pool.malloc(2 * PAGE)
        pool.hold(0)
        pool.free(addr)
    return pool, last


def sleep(driver: str) -> Prepared:
    pool = Pool(12 * PAGE, driver=driver, page_bytes=PAGE)
    for _ in range(3):
        pool.malloc(PAGE + 512, tag=1)
    pool.malloc(100, tag=1)
    pool.free(pool.malloc(2 * PAGE, tag=1))
    return pool, lambda: pool.sleep(1)


def wake(driver: str) -> Prepared:
    pool, fall_asleep = sleep(driver)
    fall_asleep()
    addresses = [pool.malloc(PAGE) for _ in range(12)]
    for addr in addresses[::2]:
        pool.free(addr)
    return pool, lambda: pool.wake(1)


def trim(driver: str) -> Prepared:
    pool, _ = move(driver)
    return pool, pool.trim


SCENES = [grow, move, move_to_both_sides, wait_and_move, sleep, wake, trim]


def contents(pool: Pool) -> list[Block]:
    return [block for block in pool.blocks() if block.state not in ("hole", "free")]


def mapped(pool: Pool) -> list[tuple]:
    """All but what only time or a further reservation changes."""
    return [(b.addr, b.size, b.state, b.mapped_pages) for b in pool.blocks() if b.state != "hole"]


def num_calls(scene: Callable[[str], Prepared], driver: str) -> int:
    pool, act = scene(driver)
    pool.fail_calls(0, 0)
    act()
    count = pool.num_calls()
    pool.close()
    return count


@pytest.mark.parametrize("driver", ["sim", "host", "host_memfd"])
@pytest.mark.parametrize("scene", SCENES)
def test_one_failure_undoes_everything_and_the_next_try_works(scene: Callable[[str], Prepared], driver: str) -> None:
    assert num_calls(scene, driver) > 0
    for call in range(num_calls(scene, driver)):
        pool, act = scene(driver)
        before, reserved = mapped(pool), pool.stats().reserved_bytes
        pool.fail_calls(call, 1)
        failed = False
        try:
            act()
        except (DriverError, OutOfMemoryError):
            failed = True
        pool.check()
        pool.fail_calls(0, 0)
        if failed and scene in (grow, move, move_to_both_sides, wait_and_move):
            assert mapped(pool) == before, f"call {call}"
            assert pool.stats().reserved_bytes == reserved
        if failed:
            act()
        pool.check()
        assert pool.stats().lost_bytes == 0
        pool.close()


@pytest.mark.parametrize("driver", ["sim", "host", "host_memfd"])
@pytest.mark.parametrize("scene", SCENES)
def test_where_undoing_fails_too_the_books_still_agree(scene: Callable[[str], Prepared], driver: str) -> None:
    for call in range(num_calls(scene, driver)):
        pool, act = scene(driver)
        live = contents(pool)
        pool.fail_calls(call, FOREVER)
        try:
            act()
        except (DriverError, OutOfMemoryError):
            assert [b.addr for b in contents(pool) if b.state == "live"] == [b.addr for b in live]
        pool.check()
        pool.fail_calls(0, 0)
        if scene in (sleep, wake):
            pool.wake(1)
        # What is not live and not lost can be had again.
        stats = pool.stats()
        pages_in_use = {
            page for b in contents(pool) for page in range(b.addr // PAGE, (b.addr + b.size + PAGE - 1) // PAGE)
        }
        available = stats.capacity_bytes - PAGE * len(pages_in_use)
        if available:
            pool.malloc(available)
        pool.check()
        pool.close()


def test_a_device_that_others_use_is_shared_by_moving_pages() -> None:
    """The second page that is asked of the device does not come: the rest is taken from free blocks."""
    pool = Pool(8 * PAGE, driver="sim", page_bytes=PAGE)
    addresses = [pool.malloc(PAGE) for _ in range(6)]
    for addr in addresses[:5:2]:
        pool.free(addr)
    pool.fail_calls(1 + 2, 1)  # the event of the frees and its state come first
    pool.malloc(3 * PAGE)
    stats = pool.stats()
    assert stats.num_not_created == 1
    assert (stats.reserved_bytes, stats.moved_pages) == (7 * PAGE, 2)
    pool.check()


def test_the_error_names_what_failed_first() -> None:
    pool, act = move("sim")
    pool.fail_calls(6, FOREVER)
    with pytest.raises(DriverError, match=r"injected fault"):
        act()


def blocked() -> tuple[Pool, Callable[[], object]]:
    """All memory was used by a stream that stands still; another one asks for a page."""
    pool = Pool(4 * PAGE, driver="sim", page_bytes=PAGE)
    addresses = [pool.malloc(PAGE, stream=2) for _ in range(4)]
    pool.hold(2)
    pool.free(addresses[1], stream=2)
    pool.record_stream(addresses[3], 3)
    pool.free(addresses[3], stream=2)
    return pool, lambda: pool.malloc(PAGE, stream=1)


@pytest.mark.parametrize("count", [1, FOREVER])
def test_failures_while_a_stream_is_made_to_wait(count: int) -> None:
    pool, act = blocked()
    pool.fail_calls(0, 0)
    act()
    num_calls_of_act = pool.num_calls()
    assert pool.stats().num_ordered == 1
    assert num_calls_of_act > 0
    for call in range(num_calls_of_act):
        pool, act = blocked()
        before = mapped(pool)
        pool.fail_calls(call, count)
        try:
            act()
        except (DriverError, OutOfMemoryError):
            assert mapped(pool) == before
            pool.fail_calls(0, 0)
            act()
        pool.check()
        assert pool.stats().live_bytes == 3 * PAGE
        assert pool.stats().moved_pages == 0
