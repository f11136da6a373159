"""Tensors that lie at known places of a file, read through a memory map."""

import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from oarlock.checkpoint.boxes import Box, flat_boxes
from oarlock.checkpoint.manifest import CheckpointError
from oarlock.checkpoint.mapped_file import MappedFile
from oarlock.checkpoint.paddle.records import Array, Span
from oarlock.checkpoint.stored import StoredPiece

_COPIED_AT_ONCE = 32 << 20


class _Place(NamedTuple):
    """Elements [start, start + n) of an array, in its own order."""

    array: Array
    start: int


class RangeFile:
    """A file with arrays; pieces of them get names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._places: dict[str, _Place] = {}
        self._last: tuple[Array, Tensor] | None = None

    @cached_property
    def bytes(self) -> Tensor:
        """The file's bytes, uint8."""
        return MappedFile(self.path).bytes

    def pieces(self, name: str, array: Array, shape: tuple[int, ...], start: int, stop: int) -> Iterator[StoredPiece]:
        """All elements of an array as the elements [start, stop) of a tensor of this shape, in row-major order.

        Where the elements are not aligned they are copied when they are read, so a large array is cut into pieces.
        """
        step = max(1, stop - start)
        if not self._is_aligned(array) and not array.fortran and isinstance(array.data, Span) and not array.data.text:
            step = _COPIED_AT_ONCE // array.dtype.itemsize
        for first in range(start, max(stop, start + 1), step):
            last = min(first + step, stop)
            place = first - start
            whole = (first, last) == (0, math.prod(shape))
            for box in [Box.whole(shape)] if whole else flat_boxes(shape, first, last):
                key = f"{name}@{len(self._places)}"
                self._places[key] = _Place(array, place)
                yield StoredPiece(self, key, box)
                place += box.volume

    def tensor(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """A piece, as a view of the file where its elements are aligned."""
        array, start = self._places[name]
        count = math.prod(shape)
        if array.fortran:
            return self._elements(array, dtype).view(array.shape[::-1]).permute(*reversed(range(len(array.shape))))
        if isinstance(array.data, bytes) or array.data.text:
            return self._elements(array, dtype)[start : start + count].view(shape)
        first = array.data.start + start * dtype.itemsize
        data = self.bytes[first : first + count * dtype.itemsize]
        return (data if self._is_aligned(array) else data.clone()).view(dtype).view(shape)

    def check(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """Arrays lie inside of the file, and have as many bytes as they need: that was seen when it was parsed."""

    def blocks_of(self, name: str, dtype: torch.dtype, shape: tuple[int, ...], box: Box) -> np.ndarray:
        """Paddle keeps no digests."""
        return np.empty(0, dtype=np.int64)

    def check_blocks(self, blocks: np.ndarray) -> None:
        """Paddle keeps no digests."""

    def _is_aligned(self, array: Array) -> bool:
        return isinstance(array.data, Span) and array.data.start % array.dtype.itemsize == 0

    def _elements(self, array: Array, dtype: torch.dtype) -> Tensor:
        """All elements in the order in which they are stored; the last array that had to be copied is kept."""
        if self._last is not None and self._last[0] is array:
            return self._last[1]
        self._last = None
        data = array.data
        if isinstance(data, bytes):
            values = (
                torch.frombuffer(bytearray(data), dtype=torch.uint8)
                if data
                else torch.empty(0, dtype=torch.uint8, device="cpu")
            )
        else:
            values = self.bytes[data.start : data.stop]
            if data.text:
                values = self._decoded(values)
            elif self._is_aligned(array):
                return values.view(dtype)
            else:
                values = values.clone()
        if len(values) != math.prod(array.shape) * dtype.itemsize:
            raise CheckpointError(f"{self.path}: {len(values)} bytes instead of those of {dtype} {list(array.shape)}")
        self._last = (array, values.view(dtype))
        return self._last[1]

    def _decoded(self, text: Tensor) -> Tensor:
        """Bytes of the characters 0 to 255 in UTF-8: those from 128 on are 110000xx 10xxxxxx."""
        codes = text.numpy()
        lead = codes >= 0xC0
        follows = (codes & 0xC0) == 0x80
        if (
            (codes[lead] > 0xC3).any()
            or not np.array_equal(lead[:-1], follows[1:])
            or follows[:1].any()
            or lead[-1:].any()
        ):
            raise CheckpointError(f"{self.path}: bytes with characters that are none")
        high = np.zeros_like(codes)
        high[1:] = np.where(lead[:-1], (codes[:-1] & 3) << 6, 0)
        return torch.from_numpy(np.where(follows, high | (codes & 0x3F), codes)[~lead])
