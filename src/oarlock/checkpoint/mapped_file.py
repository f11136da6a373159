"""Reading one safetensors file through a memory map: its tensors are views, and nothing is read before it is copied."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oarlock.checkpoint.boxes import Box
from oarlock.checkpoint.manifest import ADVICE, CheckpointError
from oarlock.checkpoint.tensor_file import stored_as
from oarlock.digest import BLOCK_BYTES, block_digests

_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library


class MappedFile:
    """A safetensors file; it is opened when first looked at and keeps no file descriptor.

    Args:
        path: the file; it must not change while it is used.
        num_bytes: the size it must have, None = any.
        blocks: digest64 of each of its MiB (16 hexadecimal digits), if they are known.
    """

    def __init__(self, path: Path, num_bytes: int | None = None, blocks: Sequence[str] = ()) -> None:
        self.path = path
        self._num_bytes = num_bytes
        self._blocks = blocks

    @cached_property
    def bytes(self) -> Tensor:
        """The file's bytes, uint8; changes to them stay in this process.

        Raises:
            CheckpointError: missing, unreadable, or of another size.
        """
        try:
            size = self.path.stat().st_size
            data = torch.empty(0, dtype=torch.uint8, device="cpu")
            if size:
                data = torch.from_file(str(self.path), shared=False, size=size, dtype=torch.uint8)
        except (OSError, RuntimeError) as error:  # torch raises the latter, for whatever mmap says
            reason = error.strerror if isinstance(error, OSError) else str(error).partition("\n")[0]
            raise CheckpointError(f"{self.path}: cannot be read: {reason}") from error
        if self._num_bytes is not None and size != self._num_bytes:
            kind = "truncated: it ends" if size < self._num_bytes else "it has"
            extra = f"{abs(size - self._num_bytes)} bytes {'early' if size < self._num_bytes else 'too many'}"
            raise CheckpointError(f"{self.path}: {kind} {extra}; {ADVICE}")
        return data

    @cached_property
    def _header(self) -> tuple[int, dict[str, Any]]:
        """Where the data begins, and the header."""
        size = len(self.bytes)
        length = int.from_bytes(self.bytes[:8].numpy().tobytes(), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
            raise CheckpointError(
                f"{self.path}: not a safetensors file (header of {length} bytes in a file of {size}); {ADVICE}"
            )
        try:
            header = json.loads(self.bytes[8 : 8 + length].numpy().tobytes(), object_pairs_hook=_without_duplicates)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.path}: its header is not readable as JSON ({error}); {ADVICE}") from None
        if not isinstance(header, dict):
            raise CheckpointError(f"{self.path}: its header is not a JSON object; {ADVICE}")
        return 8 + length, header

    @property
    def header(self) -> dict[str, Any]:
        """Tensor name -> {"dtype", "shape", "data_offsets"}, and "__metadata__"."""
        return self._header[1]

    def tensor(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """A view of a tensor in the file.

        Raises:
            CheckpointError: the header says something else about it.
        """
        start, stop = self._locate(name, dtype, shape)
        data = self.bytes[start:stop]
        if start % dtype.itemsize:  # other writers need not align their data
            data = data.clone()
        return data.view(dtype).view(shape)

    def check(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """Whether the file holds this tensor.

        Raises:
            CheckpointError: the header says something else about it, or the file ends early.
        """
        self._locate(name, dtype, shape)

    def blocks_of(self, name: str, dtype: torch.dtype, shape: tuple[int, ...], box: Box) -> np.ndarray:
        """The MiB of the file that hold a box of a tensor, and those of the header: ascending indices, int64."""
        start, _ = self._locate(name, dtype, shape)
        starts, length = _runs(shape, box)
        first = (start + starts * dtype.itemsize) // BLOCK_BYTES
        last = (start + (starts + length) * dtype.itemsize - 1) // BLOCK_BYTES
        parts = [np.arange(0, (self._header[0] - 1) // BLOCK_BYTES + 1)]
        if box.volume:
            marks = np.zeros(len(self.bytes) // BLOCK_BYTES + 2, dtype=np.int64)
            np.add.at(marks, first, 1)
            np.add.at(marks, last + 1, -1)
            parts.append(np.flatnonzero(np.cumsum(marks)))
        return ascending(parts)

    def check_blocks(self, blocks: np.ndarray) -> None:
        """Compare these MiB with their digests.

        Raises:
            CheckpointError: a difference, or there are no digests.
        """
        data = self.bytes.numpy()
        for run in np.split(blocks, np.flatnonzero(np.diff(blocks) != 1) + 1):
            if not len(run):
                continue
            start = int(run[0]) * BLOCK_BYTES
            found = block_digests(data[start : (int(run[-1]) + 1) * BLOCK_BYTES])
            for block, digest in zip(run.tolist(), found.tolist(), strict=True):
                if f"{digest:016x}" != self._blocks[block]:
                    raise CheckpointError(
                        f"{self.path}: bytes {block * BLOCK_BYTES} to {min((block + 1) * BLOCK_BYTES, len(data)) - 1}: "
                        f"expected digest {self._blocks[block]}, found {digest:016x}; {ADVICE}"
                    )

    def _locate(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[int, int]:
        data_start, header = self._header
        code, stored_shape = stored_as(dtype, shape)
        num_bytes = math.prod(shape) * dtype.itemsize
        found = header.get(name)
        match found:
            case {"dtype": str(c), "shape": list(s), "data_offsets": [int(start), int(stop)]} if (
                (c, s) == (code, stored_shape) and start >= 0 and stop - start == num_bytes
            ):
                if data_start + stop > len(self.bytes):
                    early = data_start + stop - len(self.bytes)
                    raise CheckpointError(f"{self.path}: truncated: it ends {early} bytes early; {ADVICE}")
                return data_start + start, data_start + stop
        raise CheckpointError(
            f"{self.path}: tensor {name!r}: expected {code} {stored_shape}, the file's header says {found}; "
            "the two do not belong together: restore the directory from a copy or use another checkpoint"
        )


def _runs(shape: tuple[int, ...], box: Box) -> tuple[np.ndarray, int]:
    """First elements, in row-major order, of the consecutive runs of a box, and the length of all of them."""
    length, dim = 1, len(shape)
    while dim and length == math.prod(shape[dim:]):
        dim -= 1
        length *= box.size[dim]
    starts = np.zeros(1, dtype=np.int64)
    for axis in range(dim):
        starts = starts[:, None] * shape[axis] + np.arange(box.offset[axis], box.offset[axis] + box.size[axis])
        starts = starts.reshape(-1)
    for axis in range(dim, len(shape)):
        starts = starts * shape[axis] + box.offset[axis]
    return starts, length


def ascending(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The different numbers of several int64 vectors of small non-negative ones, in order."""
    return np.flatnonzero(np.bincount(np.concatenate(parts)))  # np.unique would load numpy.ma, 0.1 s


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{twice!r} is there twice")
    return content
