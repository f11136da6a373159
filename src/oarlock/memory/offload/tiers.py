"""Where bytes go that the device has no room for: another memory behind two links, one out and one back."""

from __future__ import annotations

import bisect
import errno
import os
import tempfile
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oarlock.memory.amounts import amount
from oarlock.memory.offload.link import Link
from oarlock.memory.pool import OutOfMemoryError

_ALIGNMENT = 4096
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Copying(Protocol):
    """A copy under way."""

    def is_done(self) -> bool: ...
    def wait(self) -> None: ...
    def cancel(self, *, wait: bool = True) -> None:
        """Nobody needs it any more: it lets go of the memory as soon as it can, with `wait` before this returns."""


class Place:
    """Bytes in a tier; they are given back with its last reference."""

    def __init__(self, offset: int, num_bytes: int) -> None:
        self.offset, self.num_bytes = offset, num_bytes


class Tier(ABC):
    """A second memory. Close it, or use it as a context.

    Args:
        capacity: bytes that it holds; None for as many as there are.

    Attributes:
        peak_bytes: of all places, at most; out_bytes, in_bytes: copied out and back so far.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.peak_bytes = self.out_bytes = self.in_bytes = 0
        self._used = 0
        self._free: list[tuple[int, int]] = []  # (offset, bytes), by offset, none beside another
        self._end = 0
        self._lock = threading.Lock()
        # Places die at any time, also while `take` runs in the same thread: they only queue up here.
        self._given_back: deque[tuple[int, int]] = deque()

    @abstractmethod
    def write(self, place: Place, bytes_N: Tensor) -> Copying:
        """Begins to copy uint8 [N] of the device to a place; the tensor must live and stay as it is meanwhile."""

    @abstractmethod
    def read(self, place: Place, bytes_N: Tensor) -> Copying:
        """Begins to copy a place to uint8 [N] of the device."""

    @abstractmethod
    def close(self) -> None:
        """Waits for what is under way; nothing may be read afterwards."""

    def take(self, num_bytes: int) -> Place:
        """A place for so many bytes.

        Raises:
            OutOfMemoryError: the tier is full.
        """
        size = tier_bytes(num_bytes)
        with self._lock:
            self._settle()
            fits = [i for i, (_, free) in enumerate(self._free) if free >= size]
            tail = self._free[-1][1] if self._free and sum(self._free[-1]) == self._end else 0
            if not fits and self.capacity is not None and self._end - tail + size > self.capacity:
                raise OutOfMemoryError(
                    f"the second tier has no room for {amount(num_bytes)}: {amount(self._used)} of "
                    f"{amount(self.capacity)} are taken"
                )
            if fits:
                best = min(fits, key=lambda i: self._free[i][1])
                offset, free = self._free.pop(best)
                if free > size:
                    self._free.insert(best, (offset + size, free - size))
            else:
                if tail:
                    self._free.pop()
                offset = self._end - tail
                self._end = offset + size
            self._used += size
            self.peak_bytes = max(self.peak_bytes, self._used)
        place = Place(offset, num_bytes)
        weakref.finalize(place, self._given_back.append, (offset, size)).atexit = False
        return place

    @property
    def used_bytes(self) -> int:
        """Bytes of all places."""
        with self._lock:
            self._settle()
            return self._used

    def _settle(self) -> None:
        """Takes back the places that have died."""
        while self._given_back:
            offset, size = self._given_back.popleft()
            self._used -= size
            at = bisect.bisect(self._free, (offset, 0))
            self._free.insert(at, (offset, size))
            for left in (at, at - 1):  # join neighbours
                if 0 <= left < len(self._free) - 1 and sum(self._free[left]) == self._free[left + 1][0]:
                    self._free[left] = (self._free[left][0], self._free[left][1] + self._free.pop(left + 1)[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class FileTier(Tier):
    """A file for tensors of the CPU, behind links of a given rate.

    Args:
        folder: where the file lies, which has no name there; None for the system's folder for such files.
        out_rate, in_rate: bytes per second to the file and back; None for as fast as it goes.
        capacity: bytes that the file may have.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        out_rate: float | None = None,
        in_rate: float | None = None,
        capacity: int | None = None,
    ) -> None:
        super().__init__(capacity)
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  closed by close()
        self._descriptor = self._file.fileno()
        self._out, self._in = Link("out", out_rate), Link("in", in_rate)

    def write(self, place: Place, bytes_N: Tensor) -> Copying:
        source, file = _memory(bytes_N, place), self._descriptor
        self.out_bytes += place.num_bytes

        def copy(start: int, stop: int) -> None:
            try:
                while start < stop:
                    start += os.pwrite(file, memoryview(source[start:stop]), place.offset + start)  # type: ignore[arg-type]
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                raise OutOfMemoryError(
                    f"the file of the second tier cannot take {amount(place.num_bytes)} more: {error.strerror}; its "
                    "folder needs more room"
                ) from error

        return self._out.send(place.num_bytes, copy)

    def read(self, place: Place, bytes_N: Tensor) -> Copying:
        target, file = _memory(bytes_N, place), self._descriptor
        self.in_bytes += place.num_bytes

        def copy(start: int, stop: int) -> None:
            while start < stop:
                got = os.preadv(file, [memoryview(target[start:stop])], place.offset + start)  # type: ignore[arg-type]
                if got == 0:
                    raise OSError(f"the file of the second tier ends before byte {place.offset + stop}")
                start += got

        return self._in.send(place.num_bytes, copy)

    def close(self) -> None:
        self._out.close()
        self._in.close()
        self._file.close()


class HostTier(Tier):
    """Host memory for tensors of the CPU, behind links of a given rate: what a file tier does without a disk.

    Args:
        out_rate, in_rate: bytes per second to the tier and back; None for as fast as it goes.
        capacity: bytes that it may have.
    """

    def __init__(
        self, *, out_rate: float | None = None, in_rate: float | None = None, capacity: int | None = None
    ) -> None:
        super().__init__(capacity)
        self._out, self._in = Link("out", out_rate), Link("in", in_rate)

    def write(self, place: Place, bytes_N: Tensor) -> Copying:
        source = _memory(bytes_N, place)
        stored = _stored(place)
        self.out_bytes += place.num_bytes

        def copy(start: int, stop: int) -> None:
            stored[start:stop] = source[start:stop]

        return self._out.send(place.num_bytes, copy)

    def read(self, place: Place, bytes_N: Tensor) -> Copying:
        target = _memory(bytes_N, place)
        stored = _stored(place)
        self.in_bytes += place.num_bytes

        def copy(start: int, stop: int) -> None:
            target[start:stop] = stored[start:stop]

        return self._in.send(place.num_bytes, copy)

    def close(self) -> None:
        self._out.close()
        self._in.close()


class PinnedTier(Tier):
    """Pinned host memory for a CUDA device, copied to and from on streams of their own. Not yet run on a GPU.

    Args:
        device: whose tensors come here.
        capacity: bytes of host memory.
    """

    def __init__(self, device: torch.device | str, *, capacity: int | None = None) -> None:
        super().__init__(capacity)
        self._streams = (torch.cuda.Stream(device), torch.cuda.Stream(device))

    def write(self, place: Place, bytes_N: Tensor) -> Copying:
        self.out_bytes += place.num_bytes
        return self._copy(self._streams[0], bytes_N, _pinned(place), bytes_N)

    def read(self, place: Place, bytes_N: Tensor) -> Copying:
        self.in_bytes += place.num_bytes
        return self._copy(self._streams[1], _pinned(place), bytes_N, bytes_N)

    def close(self) -> None:
        for stream in self._streams:
            stream.synchronize()

    def _copy(self, stream: torch.cuda.Stream, source: Tensor, target: Tensor, on_device: Tensor) -> Copying:
        stream.wait_stream(torch.cuda.current_stream(on_device.device))
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
            on_device.record_stream(stream)
            return _StreamCopy(stream.record_event(), on_device.device)


class _StreamCopy:
    """A copy on a stream; the caller's stream waits for it, and so does the host: memory is counted by the host."""

    def __init__(self, event: Any, device: torch.device) -> None:
        self._event, self._device = event, device

    def is_done(self) -> bool:
        return self._event.query()

    def wait(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._event)
        self._event.synchronize()

    def cancel(self, *, wait: bool = True) -> None:
        """What a stream was given cannot be taken back; the allocator gives the memory to nobody before it is done."""


def tier_bytes(num_bytes: int) -> int:
    """What a place of so many bytes takes in a tier."""
    return max(1, -(-num_bytes // _ALIGNMENT)) * _ALIGNMENT


def _memory(bytes_N: Tensor, place: Place) -> NDArray[np.uint8]:
    if bytes_N.device.type != "cpu" or bytes_N.numel() != place.num_bytes:
        raise ValueError(f"this tier takes {place.num_bytes} bytes of the CPU, got {bytes_N.numel()} {bytes_N.device}")
    return bytes_N.numpy()


def _stored(place: Any) -> NDArray[np.uint8]:
    if not hasattr(place, "array"):
        place.array = np.empty(place.num_bytes, np.uint8)
    return place.array


def _pinned(place: Any) -> Tensor:
    if not hasattr(place, "pinned"):
        place.pinned = torch.empty(place.num_bytes, dtype=torch.uint8, pin_memory=True)
    return place.pinned
