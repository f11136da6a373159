"""A memory pool that defragments itself and never moves live data.

The pool reserves far more addresses than it has memory, and maps pages of one size behind them. A request that finds no
hole long enough gets new pages while the capacity lasts; then pages on which nothing lies are unmapped elsewhere and
mapped behind the hole, exactly as many as are missing. Addresses that were handed out, and what is stored there, stay.
"""

from __future__ import annotations

import ctypes
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Literal, Protocol

import torch

from oarlock import _native
from oarlock._native import abi
from oarlock.memory.pool_stats import Block, PoolStats, State

Driver = Literal["sim", "host", "host_memfd", "cuda"]
_DRIVERS: dict[str, int] = {"sim": 0, "host": 1, "host_memfd": 2, "cuda": 3}
_STATES: tuple[State, ...] = ("live", "free", "hole", "held", "lost")
Pressure = Callable[[int, int], bool]
"""Of (bytes, stream): frees what it can, and tells whether another try is worth it."""
_INVALID_ARGUMENT, _OUT_OF_MEMORY, _DRIVER_FAILED = 1, 2, 3


class OutOfMemoryError(MemoryError):
    """A request that the pool cannot meet; the message says where the memory is and what would have helped."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device, a pool or the host has no memory left."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # torch's CPU allocator


def without_frames(error: BaseException) -> BaseException:
    """The error alone, to be kept: the frames of its traceback hold what the program held."""
    each: BaseException | None = error
    while each is not None:
        each.__traceback__, each.__context__, each = None, None, each.__cause__
    return error


class DriverError(RuntimeError):
    """The driver refused a call; the pool is as it was before."""


class Recorder(Protocol):
    """What a pool tells, beside what its core notes."""

    def before_malloc(self, size: int) -> None: ...
    def out_of_memory(self) -> str: ...


class Pool:
    """A pool of one device.

    Args:
        capacity: bytes, at most, that it takes from the device (whole pages count).
        driver: "host" maps anonymous memory of this process (mremap; Linux), "host_memfd" a memory file (Linux), "sim"
            nothing: its addresses are numbers, for terabytes and for tests; "cuda" pages of a CUDA device through
            NVIDIA's driver library (written against its interface, not yet run on a GPU).
        device: number of the CUDA device.
        page_bytes: a power of two. Small pages strand less memory and are moved more often.
        soft_capacity: bytes up to which the pool grows before it moves pages; the capacity if None.
        reserve_factor: addresses reserved at a time, in capacities.

    Raises:
        ValueError: a size that no pool can have, or a driver that this system lacks.

    Threads may share a pool. A child process made by fork() may read what it inherited from "host" pools; its frees do
    nothing and its allocations fail. The same holds for everybody after :meth:`close`.
    """

    def __init__(
        self,
        capacity: int,
        *,
        driver: Driver = "host",
        device: int = 0,
        page_bytes: int = 2 << 20,
        soft_capacity: int | None = None,
        reserve_factor: int = 8,
    ) -> None:
        if driver not in _DRIVERS:
            raise ValueError(f"driver must be one of {', '.join(_DRIVERS)}, got {driver!r}")
        soft_capacity = capacity if soft_capacity is None else soft_capacity
        for name, value in (
            ("capacity", capacity),
            ("soft_capacity", soft_capacity),
            ("page_bytes", page_bytes),
            ("reserve_factor", reserve_factor),
        ):
            if not 0 <= value < 2**63:
                raise ValueError(f"{name} must be between 0 and 2**63, got {value}")
        self.driver: Driver = driver
        self._library = _native.library()
        self._handle = ctypes.c_void_p()
        self._callback = abi.PRESSURE()
        self._raised = threading.local()
        self.pressure: Pressure | None = None
        """What `set_pressure` was given."""
        self.recorder: Recorder | None = None
        """What notes this pool's events; see `oarlock.memory.record`."""
        config = abi.PoolConfig(capacity, soft_capacity, page_bytes, reserve_factor, _DRIVERS[driver], device)
        self._call("oarlock_pool_open", ctypes.byref(config), ctypes.byref(self._handle))

    def _call(self, name: str, *arguments: object) -> None:
        self._raised.__dict__.clear()  # what a request of torch's left there, which does not pass here
        status = getattr(self._library, name)(*arguments)
        if status == 0:
            return
        message = self._library.oarlock_pool_message().decode()
        raised = self._raised.__dict__.pop("error", None)
        if status == _OUT_OF_MEMORY:
            message += "" if self.recorder is None else self.recorder.out_of_memory()
            raise OutOfMemoryError(message) from raised
        if status == _DRIVER_FAILED:
            raise DriverError(message) from raised
        raise ValueError(message)

    def call(self, name: str, *arguments: object) -> None:
        """Calls a function of the core on this pool; for the parts of this package."""
        self._call(name, self._handle, *arguments)

    def malloc(self, size: int, *, stream: int = 0, tag: int = 0) -> int:
        """Allocates.

        Args:
            size: bytes; 0 gives address 0.
            stream: the stream that will use it first (a CUDA stream's handle).
            tag: allocations of one tag share pages and can be put to sleep together.

        Returns:
            the address, a multiple of 512.

        Raises:
            OutOfMemoryError: not even after moving pages, the pressure callback and waiting for events.
            DriverError: the driver failed; nothing has changed.
            ValueError: a negative size, the tag is asleep, or the pool is closed.
        """
        if size < 0:
            raise ValueError(f"size must not be negative, got {size}")
        if self.recorder is not None:
            self.recorder.before_malloc(size)
        addr = ctypes.c_uint64()
        self._call("oarlock_pool_malloc", self._handle, min(size, 2**64 - 1), stream, tag, ctypes.byref(addr))
        return addr.value

    def free(self, addr: int, *, stream: int = 0) -> None:
        """Frees an allocation, from any thread; ``stream`` may still be using it, and the one it was allocated on.

        Raises:
            ValueError: not a live allocation of this pool.
        """
        self._call("oarlock_pool_free", self._handle, addr, stream)

    def record_stream(self, addr: int, stream: int) -> None:
        """Another stream uses the allocation: once freed it waits for what that stream has been given until then."""
        self._call("oarlock_pool_record_stream", self._handle, addr, stream)

    def pin(self, addr: int, reason: str) -> None:
        """Keeps the memory behind an allocation where it is, also after a free and through sleep, until unpinned.

        For memory that others know: exported to a process, registered with NCCL, captured in a CUDA graph.
        """
        self._call("oarlock_pool_pin", self._handle, addr, reason.encode())

    def unpin(self, addr: int) -> None:
        """Takes one pin back; an allocation that was freed meanwhile becomes free with the last one."""
        self._call("oarlock_pool_unpin", self._handle, addr)

    def sleep(self, tag: int, *, keep: bool = True) -> None:
        """Gives the pages of a tag back to the device; its addresses stay. Waits for all streams of the pool.

        Args:
            tag: see :meth:`malloc`.
            keep: copies the contents to the host, for :meth:`wake`.
        """
        self._call("oarlock_pool_sleep", self._handle, tag, keep)

    def wake(self, tag: int) -> None:
        """Puts memory behind the addresses of a tag again; contents come back where they were kept.

        Raises:
            OutOfMemoryError: there is no room for it now; the tag sleeps on.
        """
        self._call("oarlock_pool_wake", self._handle, tag)

    def trim(self) -> None:
        """Gives back to the device every page that nothing lies on."""
        self._call("oarlock_pool_trim", self._handle)

    def allow_peer(self, device: int) -> None:
        """Another device may use the pool's memory, also what is mapped or moved later.

        Raises:
            DriverError: the devices cannot reach each other, or the driver has one device only.
        """
        self._call("oarlock_pool_allow_peer", self._handle, device)

    def set_pressure(self, callback: Pressure | None) -> None:
        """Sets what is called where a request cannot be met.

        Args:
            callback: of (size, stream), on the thread of the request and without the pool's lock: frees what it can,
                and returns whether another try is worth it (at most 8 for one request). What it raises becomes the
                cause of the OutOfMemoryError.
        """

        def call(_user: int | None, size: int, stream: int) -> int:
            try:
                return int(callback is not None and bool(callback(size, stream)))
            except BaseException as error:
                self._raised.error = without_frames(error)
                return 0

        pressure = abi.PRESSURE() if callback is None else abi.PRESSURE(call)
        self._call("oarlock_pool_set_pressure", self._handle, pressure, None)
        self._callback, self.pressure = pressure, callback  # the core holds no reference

    def serve_torch(self, device: int) -> None:
        """Has the functions ``oarlock_torch_*`` of the C++ core, which torch's allocators call, use this pool.

        Raises:
            ValueError: another pool serves that device, or it is not between 0 and 63.
        """
        if self._library.oarlock_torch_attach(device, self._handle):
            raise ValueError(f"device {device} is served by another pool, or is not between 0 and 63")

    def dlpack(self, addr: int, num_bytes: int) -> int:
        """Address of a ``DLManagedTensor`` of ``num_bytes`` bytes whose deleter frees the allocation (host memory)."""
        managed = ctypes.c_void_p()
        self._call("oarlock_pool_dlpack", self._handle, addr, num_bytes, ctypes.byref(managed))
        assert managed.value is not None
        return managed.value

    def largest(self, *, stream: int = 0, tag: int = 0) -> int:
        """Bytes of the largest request that would be met now, without the pressure callback and without waiting."""
        size = ctypes.c_uint64()
        self._call("oarlock_pool_largest", self._handle, stream, tag, ctypes.byref(size))
        return size.value

    def fits(self, sizes: Sequence[int], *, stream: int = 0, tag: int = 0) -> bool:
        """Whether allocations of these sizes (bytes), one after the other, would all be met now.

        Without the pressure callback and without waiting for streams. It is tried on a copy of the pool's books:
        nothing moves, and the figures of the pool stay as they are. What the device itself would refuse is not seen.

        Raises:
            ValueError: a negative size.
        """
        if any(size < 0 for size in sizes):
            raise ValueError(f"sizes must not be negative, got {min(sizes)}")
        fits = ctypes.c_int32()
        array = (ctypes.c_uint64 * len(sizes))(*(min(size, 2**64 - 1) for size in sizes))
        self._call("oarlock_pool_fits", self._handle, array, len(sizes), stream, tag, ctypes.byref(fits))
        return bool(fits.value)

    def max_batch(
        self,
        at_most: int,
        *,
        per_item: Mapping[str, int],
        fixed: Mapping[str, int] | None = None,
        stream: int = 0,
        tag: int = 0,
    ) -> int:
        """The most items whose temporaries all fit into the memory that is free now, side by side.

        For tokens of a mixture of experts, or rows of any batch that can be cut: what fits is decided by the holes that
        are there, each temporary needs one of its own.

        Args:
            at_most: items there are.
            per_item: name -> bytes of an item in the temporary.
            fixed: name -> bytes that the temporary of that name takes beside its items; further names are temporaries
                of a fixed size.

        Returns:
            a number from 0 to `at_most` for which :meth:`fits` says yes (0 if not even the fixed ones fit).

        Raises:
            ValueError: a negative number.
        """
        fixed = fixed or {}
        for what, value in {"at_most": at_most, **per_item, **fixed}.items():
            if value < 0:
                raise ValueError(f"{what} must not be negative, got {value}")

        def served(items: int) -> bool:
            sizes = {name: fixed.get(name, 0) + items * size for name, size in per_item.items()}
            return self.fits(list({**fixed, **sizes}.values()), stream=stream, tag=tag)

        if served(at_most):
            return at_most
        low, high = 0, at_most  # `high` does not fit
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if served(middle) else (low, middle)
        return low

    def batches(
        self, num_items: int, *, per_item: Mapping[str, int], fixed: Mapping[str, int] | None = None
    ) -> Iterator[slice]:
        """Cuts a batch into the largest parts whose temporaries fit, each measured when its turn comes.

        Args:
            per_item, fixed: see :meth:`max_batch`; a part's temporaries must be freed before the next part.

        Raises:
            OutOfMemoryError: not even one item fits.
            ValueError: a negative number.
        """
        if num_items < 0:
            raise ValueError(f"num_items must not be negative, got {num_items}")
        start = 0
        while start < num_items:
            count = self.max_batch(num_items - start, per_item=per_item, fixed=fixed)
            if count == 0:
                need = sum((fixed or {}).values()) + sum(per_item.values())
                raise OutOfMemoryError(
                    f"not one of {num_items - start} items fits: its temporaries take {need} bytes, the largest "
                    f"request that can be met is {self.largest()}; free something, or give the pool more capacity"
                )
            yield slice(start, start + count)
            start += count

    def stats(self) -> PoolStats:
        """The figures of the pool; it looks at every block."""
        stats = abi.PoolStats()
        self._call("oarlock_pool_get_stats", self._handle, ctypes.byref(stats))
        return PoolStats(**{field.name: getattr(stats, field.name) for field in dataclasses.fields(PoolStats)})

    def blocks(self) -> list[Block]:
        """All blocks in address order within their reservations."""
        count = ctypes.c_int64()
        room = 1024
        while True:
            blocks = (abi.PoolBlock * room)()
            self._call("oarlock_pool_walk", self._handle, blocks, room, ctypes.byref(count))
            if count.value <= room:
                break
            room = 2 * count.value
        return [
            Block(
                *(b.addr, b.size, b.requested, b.stream, b.mapped_pages, b.tag, b.pins),
                state=_STATES[b.state],
                blocked=bool(b.blocked),
            )
            for b in blocks[: count.value]
        ]

    def check(self) -> None:
        """Compares blocks, indexes, page tables and the driver.

        Raises:
            AssertionError: they disagree, which is a bug of the pool.
        """
        if self._library.oarlock_pool_check(self._handle):
            raise AssertionError(self._library.oarlock_pool_message().decode())

    def fail_calls(self, first: int, count: int = 1) -> None:
        """For tests: of the driver's calls from now on, numbers ``first`` to ``first + count - 1`` fail."""
        self._call("oarlock_pool_fail_calls", self._handle, first, count)

    def num_calls(self) -> int:
        """Calls of the driver since :meth:`fail_calls`."""
        count = ctypes.c_uint64()
        self._call("oarlock_pool_num_calls", self._handle, ctypes.byref(count))
        return count.value

    def hold(self, stream: int, held: bool = True) -> None:
        """For tests of "sim": the stream completes nothing until it is let go or waited for."""
        self._call("oarlock_pool_sim_hold", self._handle, stream, held)

    def close(self) -> None:
        """Gives all memory back; what was handed out must not be touched any more, freeing it does nothing."""
        self._call("oarlock_pool_close", self._handle)

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
