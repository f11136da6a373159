"""Other devices: peers that reach the pool's memory, and the CUDA driver."""

import subprocess
import sys

import pytest
import torch

from oarlock import _native
from oarlock.memory import DriverError, Pool, use_pool_for_cuda

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


CUDA_RUN = """
import torch
from oarlock.memory import use_pool_for_cuda

pool = use_pool_for_cuda(1 << 30)[0]
a = torch.ones(1 << 20, device="cuda")
assert a.data_ptr() in {block.addr for block in pool.blocks()}
assert pool.stats().live_bytes == 4 << 20
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    torch.cuda._sleep(50_000_000)
    b = a * 2
a.record_stream(side)
address = a.data_ptr()
del a  # the side stream may still read it
c = torch.zeros(1 << 20, device="cuda")
assert c.data_ptr() != address
assert b.sum().item() == 2 << 20
linear = torch.nn.Linear(512, 512, device="cuda")
for _ in range(20):
    linear(torch.randn(512, 512, device="cuda")).square().mean().backward()
try:
    torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
except (MemoryError, RuntimeError) as error:
    assert "requested of a pool of 1.00 GiB" in str(error), error
else:
    raise AssertionError("two of one GiB")
pool.check()
print("passed")
"""


@pytest.mark.gpu
def test_torch_allocates_from_the_pool_on_cuda() -> None:
    done = subprocess.run([sys.executable, "-c", CUDA_RUN], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip().endswith("passed"), done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_torch_keeps_its_allocator() -> None:
    with pytest.raises(RuntimeError, match="no CUDA device"):
        use_pool_for_cuda()


def test_what_torch_calls_finds_the_pool_by_its_device() -> None:
    """The functions that a pluggable allocator is made of, on a simulated device."""
    library = _native.library()
    pool = Pool(4 * PAGE, driver="sim", page_bytes=PAGE)
    with pytest.raises(ValueError, match="between 0 and 63"):
        pool.serve_torch(64)
    pool.serve_torch(63)
    with pytest.raises(ValueError, match="another pool"):
        Pool(4 * PAGE, driver="sim", page_bytes=PAGE).serve_torch(63)
    first = library.oarlock_torch_malloc(PAGE, 63, 11)
    pool.hold(22)
    library.oarlock_torch_record_stream(first, 22)
    library.oarlock_torch_free(first, PAGE, 63, 11)
    assert library.oarlock_torch_malloc(PAGE, 63, 11) != first  # stream 22 may still use it
    pool.hold(22, False)
    assert library.oarlock_torch_malloc(PAGE, 63, 11) == first
    library.oarlock_torch_free(first, PAGE, 62, 11)  # nobody serves that device
    assert pool.stats().num_live == 2
    pool.check()
