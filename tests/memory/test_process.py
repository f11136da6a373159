"""Threads, forks, the end of the process, several devices, and a kernel without mappings to spare."""

import ctypes
import mmap
import os
import subprocess
import sys
import threading

import pytest

from oarlock.memory import Pool

PAGE = 4096


@pytest.mark.parametrize("driver", ["sim", "host", "host_memfd"])
def test_threads_share_a_pool(driver: str) -> None:
    """Four threads allocate, check their own bytes, and free what another one allocated."""
    pool = Pool(4096 * PAGE, soft_capacity=128 * PAGE, driver=driver, page_bytes=PAGE)
    handed: list[list[tuple[int, int, int]]] = [[] for _ in range(4)]
    failures: list[BaseException] = []

    start = threading.Barrier(4)

    def work(me: int) -> None:
        try:
            start.wait(60)
            for i in range(400):
                size = (me * 7919 + i * 104729) % (6 * PAGE) + 1
                addr = pool.malloc(size, stream=me, tag=i % 2)
                if driver != "sim":
                    ctypes.memset(addr, me + 1, size)
                handed[(me + 1) % 4].append((addr, size, me + 1))
                while len(handed[me]) > 20:
                    addr, size, byte = handed[me].pop()
                    if driver != "sim":
                        assert ctypes.string_at(addr, size) == bytes([byte]) * size
                    pool.free(addr, stream=me)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    pool.check()
    for addr, _, _ in [entry for entries in handed for entry in entries]:
        pool.free(addr)
    assert pool.stats().live_bytes == 0
    # Everything is free again, so all pages together serve one block.
    largest = pool.malloc(pool.stats().reserved_bytes)
    assert pool.stats().live_bytes >= 128 * PAGE
    pool.check()
    pool.free(largest)
    pool.close()


def test_calls_after_close_do_nothing() -> None:
    pool = Pool(8 * PAGE, driver="host", page_bytes=PAGE)
    addr = pool.malloc(PAGE)
    pool.close()
    pool.free(addr)
    pool.free(addr)
    pool.close()
    pool.trim()
    pool.check()
    assert pool.blocks() == []
    assert pool.stats().live_bytes == 0
    with pytest.raises(ValueError, match="closed"):
        pool.malloc(1)


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=100,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FORK = """
import ctypes, os, threading, time
from oarlock.memory import Pool

def story(driver):
    pool = Pool(64 << 12, driver=driver, page_bytes=1 << 12)
    addr = pool.malloc(5000)
    ctypes.memset(addr, 7, 5000)
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            pool.free(pool.malloc(9000))
            time.sleep(0)

    thread = threading.Thread(target=busy)
    thread.start()
    children = []
    for _ in range(5):
        child = os.fork()  # perhaps while the other thread has the pool's lock
        if child == 0:
            code = 1
            try:
                pool.free(addr)
                pool.trim()
                pool.close()
                try:
                    pool.malloc(100)
                except ValueError as error:
                    code = 0 if "forked" in str(error) else 2
                if driver == "host" and ctypes.string_at(addr, 5000) != bytes([7]) * 5000:
                    code = 3
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    stop.set()
    thread.join()
    assert codes == [0] * 5, codes
    assert ctypes.string_at(addr, 5000) == bytes([7]) * 5000
    pool.check()
    pool.free(addr)

story("host")
story("host_memfd")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_process_leaves_the_pool_alone() -> None:
    run(FORK)


def test_the_process_ends_with_live_memory() -> None:
    run(
        "import atexit\nfrom oarlock.memory import Pool\npool = Pool(1 << 20, page_bytes=1 << 12)\n"
        "addr = pool.malloc(3 << 12)\natexit.register(lambda: pool.free(addr))\natexit.register(pool.close)\n"
    )


MAPPINGS = """
import ctypes
import mmap
from oarlock.memory import DriverError, Pool

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

def story(driver):
    pool = Pool(64 << 12, driver=driver, page_bytes=1 << 12)
    addresses = [pool.malloc(1 << 12) for _ in range(64)]
    for i, addr in enumerate(addresses):
        ctypes.memset(addr, i, 1 << 12)
    for addr in addresses[::2]:
        pool.free(addr)
    size = 1 << 29
    area = libc.mmap(None, size, 0, 0x22, -1, 0)  # PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS
    for page in range(0, size // 4096, 2):
        if libc.mprotect(area + page * 4096, 4096, 1):
            break
    else:
        raise SystemExit("the kernel allows more mappings than expected")
    try:
        pool.malloc(32 << 12)
        outcome = "moved"
    except DriverError:
        outcome = "refused"
    pool.check()
    libc.munmap(area, size)
    if outcome == "refused":
        pool.malloc(32 << 12)
    for i, addr in enumerate(addresses):
        if i % 2:
            assert ctypes.string_at(addr, 1 << 12) == bytes([i]) * (1 << 12)
    pool.check()
    print(outcome)

story("host")
story("host_memfd")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="vm.max_map_count")
def test_a_kernel_without_mappings_to_spare_is_an_error_and_not_the_end() -> None:
    assert set(run(MAPPINGS).split()) <= {"moved", "refused"}


def test_each_pool_acts_on_its_own_memory() -> None:
    """Two devices: a pointer belongs to one pool, whichever was used last."""
    with (
        Pool(8 * PAGE, driver="host", page_bytes=PAGE) as first,
        Pool(8 * PAGE, driver="host", page_bytes=PAGE) as second,
    ):
        a, b = first.malloc(PAGE), second.malloc(PAGE)
        ctypes.memset(b, 5, PAGE)
        with pytest.raises(ValueError, match="not a live allocation"):
            first.free(b)
        first.free(a)
        first.trim()
        assert ctypes.string_at(b, PAGE) == b"\x05" * PAGE


@pytest.mark.skipif(sys.platform != "linux", reason="the host drivers need Linux")
@pytest.mark.parametrize("driver", ["host", "host_memfd"])
def test_other_threads_map_memory_while_pages_move(driver: str) -> None:
    """No address that a page leaves is another thread's for a moment: neither loses what it wrote."""
    size, done, broken = 64 << 10, threading.Event(), threading.Event()

    def map_and_unmap() -> None:
        while not done.is_set():
            maps = [mmap.mmap(-1, size) for _ in range(16)]  # where the kernel likes, such as an address just left
            for i, m in enumerate(maps):
                m[:] = bytes([i + 1]) * size
            if any(m[:] != bytes([i + 1]) * size for i, m in enumerate(maps)):
                broken.set()
            for m in maps:
                m.close()

    threads = [threading.Thread(target=map_and_unmap, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            with Pool(64 * size, driver=driver, page_bytes=size) as pool:
                addrs = [pool.malloc(size) for _ in range(64)]
                for i, addr in enumerate(addrs):
                    ctypes.memset(addr, i + 1, size)
                for addr in addrs[1::2]:
                    pool.free(addr)
                ctypes.memset(pool.malloc(24 * size), 255, 24 * size)
                for i, addr in list(enumerate(addrs))[::2]:
                    assert ctypes.string_at(addr, size) == bytes([i + 1]) * size
                assert pool.stats().moved_pages >= 23
                pool.check()
    finally:
        done.set()
        for thread in threads:
            thread.join(60)
    assert not broken.is_set()
