"""How many items fit into the holes that are there: against really allocating."""

import dataclasses

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from oarlock.memory import OutOfMemoryError, Pool

PAGE = 1 << 16


def churned(pool: Pool, sizes: list[int], freed: list[int]) -> None:
    """A pool with holes: allocations of which some are freed again."""
    addresses = []
    for size in sizes:
        try:
            addresses.append(pool.malloc(size))
        except OutOfMemoryError:
            break
    for index in sorted({i % len(addresses) for i in freed} if addresses else (), reverse=True):
        pool.free(addresses.pop(index))


def allocated(pool: Pool, sizes: list[int]) -> bool:
    """Whether they are met, one after the other; all are freed again."""
    addresses: list[int] = []
    try:
        for size in sizes:
            addresses.append(pool.malloc(size))
    except OutOfMemoryError:
        return False
    finally:
        for addr in addresses:
            pool.free(addr)
    return True


@pytest.mark.parametrize("driver", ["sim", "host"])
@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 6 * PAGE), min_size=1, max_size=30),
    freed=st.lists(st.integers(0, 29), max_size=20),
    wanted=st.lists(st.integers(0, 12 * PAGE), min_size=1, max_size=5),
)
def test_fits_says_what_allocating_does(driver: str, sizes: list[int], freed: list[int], wanted: list[int]) -> None:
    with Pool(32 * PAGE, driver=driver, page_bytes=PAGE) as pool:  # type: ignore[arg-type]
        churned(pool, sizes, freed)
        said = pool.fits(wanted)
        assert allocated(pool, wanted) == said
        pool.check()


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 6 * PAGE), min_size=1, max_size=30),
    freed=st.lists(st.integers(0, 29), max_size=20),
    per_item=st.lists(st.integers(1, 3000), min_size=1, max_size=4),
    fixed=st.integers(0, 3 * PAGE),
)
def test_max_batch_fits_and_one_more_does_not(
    sizes: list[int], freed: list[int], per_item: list[int], fixed: int
) -> None:
    with Pool(32 * PAGE, driver="sim", page_bytes=PAGE) as pool:
        churned(pool, sizes, freed)
        pool.fits([])  # asks the streams how far they are, as every query does
        before = dataclasses.asdict(pool.stats()), pool.blocks()
        named = {f"part {i}": size for i, size in enumerate(per_item)}
        count = pool.max_batch(10_000, per_item=named, fixed={"scores": fixed})
        assert (dataclasses.asdict(pool.stats()), pool.blocks()) == before
        if count < 10_000:
            assert not pool.fits([fixed, *((count + 1) * size for size in per_item)])
        if count:
            assert allocated(pool, [fixed, *(count * size for size in per_item)])


def test_holes_decide_and_not_the_sum_of_free_bytes() -> None:
    """Two temporaries of 3 pages fit side by side where one of 6 would need pages that others lie on."""
    with Pool(8 * PAGE, driver="sim", page_bytes=PAGE) as pool:
        kept = [pool.malloc(PAGE // 2) for _ in range(16)]
        for addr in kept[1::2]:
            pool.free(addr)  # half of every page: nothing can move
        assert pool.stats().free_bytes == 4 * PAGE
        assert pool.max_batch(1000, per_item={"x": 512}) == PAGE // 2 // 512
        assert pool.max_batch(1000, per_item={"x": 512, "y": 512}) == PAGE // 2 // 512
        assert pool.max_batch(3, per_item={"x": PAGE}) == 0


def test_neither_the_pressure_callback_nor_waiting_counts() -> None:
    called: list[int] = []
    with Pool(8 * PAGE, driver="sim", page_bytes=PAGE) as pool:
        pool.set_pressure(lambda size, stream: called.append(size) is not None)
        addr = pool.malloc(8 * PAGE, stream=1)
        pool.hold(1)
        pool.free(addr, stream=1)
        assert pool.max_batch(8, per_item={"x": PAGE}, stream=1) == 8  # its own stream need not wait
        pool.malloc(4 * PAGE, stream=1)
        assert pool.fits([4 * PAGE], stream=1)
        assert not pool.fits([8 * PAGE])
        assert called == []
        assert pool.stats().num_out_of_memory == 0


def test_another_tag_takes_whole_pages_of_the_first() -> None:
    with Pool(8 * PAGE, driver="sim", page_bytes=PAGE) as pool:
        addresses = [pool.malloc(2 * PAGE) for _ in range(4)]
        pool.free(addresses[1])
        assert pool.max_batch(100, per_item={"x": PAGE}, tag=3) == 2
        pool.sleep(0, keep=False)
        assert pool.max_batch(100, per_item={"x": PAGE}, tag=3) == 8
        assert pool.max_batch(100, per_item={"x": PAGE}, tag=0) == 0


def test_batches_cover_all_items_in_parts_that_fit() -> None:
    with Pool(16 * PAGE, driver="sim", page_bytes=PAGE) as pool:
        pool.malloc(10 * PAGE)
        parts = []
        for part in pool.batches(100, per_item={"up": 4096, "down": 8192}, fixed={"scores": PAGE}):
            size = part.stop - part.start
            assert allocated(pool, [PAGE, size * 4096, size * 8192])
            parts.append(part)
        assert [i for part in parts for i in range(part.start, part.stop)] == list(range(100))
        assert len(parts) > 3
        with pytest.raises(OutOfMemoryError, match="not one of 5 items fits"):
            list(pool.batches(5, per_item={"x": 17 * PAGE}))


def test_negative_numbers_are_named() -> None:
    with Pool(8 * PAGE, driver="sim", page_bytes=PAGE) as pool:
        with pytest.raises(ValueError, match="at_most must not be negative, got -1"):
            pool.max_batch(-1, per_item={"x": 1})
        with pytest.raises(ValueError, match="x must not be negative, got -2"):
            pool.max_batch(1, per_item={"x": -2})
        with pytest.raises(ValueError, match="sizes must not be negative, got -3"):
            pool.fits([1, -3])


def test_batches_of_less_than_nothing_are_refused() -> None:
    with Pool(1 << 20, driver="sim", page_bytes=1 << 16) as pool:
        assert list(pool.batches(0, per_item={"a": 1})) == []
        with pytest.raises(ValueError, match="num_items must not be negative, got -3"):
            list(pool.batches(-3, per_item={"a": 1}))
