"""Other devices: peers that reach the pool's memory, and the CUDA driver."""

import pytest
import torch

from oarlock.memory import DriverError, Pool

PAGE = 4096


def fragmented() -> Pool:
    pool = Pool(8 * PAGE, driver="sim", page_bytes=PAGE)
    addresses = [pool.malloc(PAGE) for _ in range(8)]
    for addr in addresses[::2]:
        pool.free(addr)
    return pool


def test_peers_reach_what_is_mapped_and_what_is_moved_later() -> None:
    """The simulated driver holds against the pool every page that not all peers reach."""
    pool = fragmented()
    pool.allow_peer(1)
    pool.allow_peer(2)
    pool.check()
    pool.malloc(3 * PAGE)
    assert pool.stats().moved_pages == 3
    pool.check()


def test_a_peer_that_cannot_be_reached_changes_nothing() -> None:
    for call in range(9):
        pool = fragmented()
        pool.fail_calls(call, 1)
        with pytest.raises(DriverError, match="injected"):
            pool.allow_peer(1)
        pool.check()
        pool.allow_peer(1)
        pool.check()


def test_the_host_has_no_peers() -> None:
    with Pool(8 * PAGE, driver="host_memfd", page_bytes=PAGE) as pool, pytest.raises(DriverError, match="no other"):
        pool.allow_peer(1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_the_cuda_driver_says_so() -> None:
    with pytest.raises(ValueError, match=r"libcuda|CUDA device"):
        Pool(1 << 30, driver="cuda")


@pytest.mark.gpu
def test_pages_of_a_cuda_device_move_and_sleep() -> None:
    torch.cuda.init()
    page = 2 << 20
    with Pool(8 * page, driver="cuda") as pool:
        addresses = [pool.malloc(page) for _ in range(8)]
        for addr in addresses[::2]:
            pool.free(addr)
        large = pool.malloc(4 * page)
        assert pool.stats().moved_pages >= 3
        pool.check()
        for addr in (large, *addresses[1::2]):
            pool.free(addr)
        weights = pool.malloc(3 * page, tag=1)
        pool.sleep(1)
        assert pool.stats().asleep_bytes == 3 * page
        pool.wake(1)
        pool.free(weights)
        pool.check()
