"""Writing one safetensors file straight from the tensors' memory, hashed on the way.

The layout is that of safetensors, so any safetensors library reads these files: 8 bytes little-endian header length,
a JSON header padded with blanks, then the tensors' bytes without gaps, wide dtypes first so that all are aligned.
A dtype that safetensors cannot name is stored as a vector of bytes (U8); the manifest knows the real dtype and shape.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from oarlock.checkpoint.dtypes import SAFETENSORS_NAMES
from oarlock.checkpoint.manifest import FileEntry
from oarlock.digest import BLOCK_BYTES, Digest64, tensor_bytes

_WRITE_BYTES = 1 << 20  # hashed and written while it is in cache
_ALIGNMENT = 64


class HashedFile:
    """A new file that is hashed while it is written and synced to the disk when the block ends without an error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digest = Digest64()
        self._num_bytes = 0

    def __enter__(self) -> Self:
        self._file = open(self._path, "xb", buffering=0)
        return self

    def write(self, data: Any) -> None:
        """Write all of `data` (any buffer of bytes); an OSError carries the file's name."""
        view = memoryview(data)
        for start in range(0, len(view), _WRITE_BYTES):
            block = view[start : start + _WRITE_BYTES]
            self._digest.update(block)
            while block:
                try:
                    block = block[self._file.write(block) :]
                except OSError as error:
                    error.filename = self._path.name
                    raise
            self._num_bytes += min(_WRITE_BYTES, len(view) - start)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                os.fsync(self._file.fileno())
        except OSError as error:
            error.filename = self._path.name
            raise
        finally:
            self._file.close()

    @property
    def entry(self) -> FileEntry:
        """Size and digests of what has been written."""
        blocks: list[int] = self._digest.block_digests().tolist() if self._num_bytes > BLOCK_BYTES else []
        return FileEntry(self._num_bytes, self._digest.hexdigest(), tuple(f"{digest:016x}" for digest in blocks))


def write_tensor_file(path: Path, tensors: Mapping[str, Tensor]) -> FileEntry:
    """Write `tensors` (any device, dtype, shape and strides) as a safetensors file that must not exist yet."""
    header, ordered = lay_out({name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()})
    with HashedFile(path) as file:
        file.write(header)
        for name in ordered:
            file.write(tensor_bytes(tensors[name]).data)
    return file.entry


def lay_out(tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> tuple[bytes, list[str]]:
    """The first bytes of a file with tensors of these dtypes and shapes, and the names in the order of their data."""
    ordered = sorted(tensors, key=lambda name: (-tensors[name][0].itemsize, name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in ordered:
        dtype, shape = tensors[name]
        end = offset + math.prod(shape) * dtype.itemsize
        code, stored_shape = stored_as(dtype, shape)
        header[name] = {"dtype": code, "shape": stored_shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text, ordered


def stored_as(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[str, list[int]]:
    """The dtype and shape under which safetensors stores a tensor."""
    if dtype in SAFETENSORS_NAMES:
        return SAFETENSORS_NAMES[dtype], list(shape)
    return "U8", [math.prod(shape) * dtype.itemsize]
