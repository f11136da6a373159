"""One safetensors file: written straight from the tensors' memory with its digest, read straight into new tensors.

The layout is that of safetensors, so any safetensors library reads these files: 8 bytes little-endian header length,
a JSON header padded with blanks, then the tensors' bytes without gaps, wide dtypes first so that all are aligned.
A dtype that safetensors cannot name is stored as a vector of bytes (U8); the manifest knows the real dtype and shape.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from oarlock.checkpoint.manifest import CheckpointError, FileEntry, TensorEntry
from oarlock.digest import Digest64, tensor_bytes

_WRITE_BYTES = 1 << 20  # hashed and written while it is in cache
_ALIGNMENT = 64
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library

_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def dtype_name(dtype: torch.dtype) -> str:
    """torch's name of a dtype: `float32`, `bfloat16`, ..."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """The inverse of dtype_name; ValueError if this torch has no such dtype."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch {torch.__version__} has no dtype {name!r}")
    return dtype


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
        """Size and digest of what has been written."""
        return FileEntry(self._num_bytes, self._digest.hexdigest())


def write_tensor_file(path: Path, tensors: Mapping[str, Tensor]) -> FileEntry:
    """Write `tensors` (any device, dtype, shape and strides) as a safetensors file that must not exist yet."""
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in ordered:
        end = offset + tensor.numel() * tensor.element_size()
        code, shape = _stored_as(tensor.dtype, tuple(tensor.shape))
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    with HashedFile(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            file.write(tensor_bytes(tensor).data)
    return file.entry


def split_by_bytes(tensors: Mapping[str, Tensor], max_bytes: int) -> list[dict[str, Tensor]]:
    """Consecutive parts of at most `max_bytes` bytes of data, or of one tensor; at least one part."""
    parts: list[dict[str, Tensor]] = [{}]
    free = max_bytes
    for name, tensor in tensors.items():
        num_bytes = tensor.numel() * tensor.element_size()
        if parts[-1] and num_bytes > free:
            parts.append({})
            free = max_bytes
        parts[-1][name] = tensor
        free -= num_bytes
    return parts


def read_tensors(path: Path, entries: Iterable[tuple[str, TensorEntry]]) -> dict[str, Tensor]:
    """Read some tensors of a safetensors file into new CPU tensors.

    Raises:
        CheckpointError: the file is truncated, or its header contradicts the manifest's entries.
    """
    tensors = {}
    try:
        with open(path, "rb", buffering=0) as file:
            data_start, header = _read_header(path, file)
            for name, entry in entries:
                tensor = torch.empty(entry.shape, dtype=dtype_of(entry.dtype))
                start, end = _locate(path, header, name, entry)
                file.seek(data_start + start)
                _read_into(path, file, memoryview(tensor_bytes(tensor).data), end - start)
                tensors[name] = tensor
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    return tensors


def _stored_as(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[str, list[int]]:
    if dtype in _CODES:
        return _CODES[dtype], list(shape)
    return "U8", [math.prod(shape) * dtype.itemsize]


def _read_header(path: Path, file: Any) -> tuple[int, dict[str, Any]]:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
        raise CheckpointError(f"{path}: not a safetensors file (header of {length} bytes in a file of {size})")
    raw = bytearray(length)
    _read_into(path, file, memoryview(raw), length)
    try:
        header = json.loads(raw)
    except ValueError as error:
        raise CheckpointError(f"{path}: its header is not readable as JSON ({error}); the file is damaged") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: its header is not a JSON object; the file is damaged")
    return 8 + length, header


def _locate(path: Path, header: dict[str, Any], name: str, entry: TensorEntry) -> tuple[int, int]:
    """First and last-plus-one byte of a tensor, after checking that header and manifest agree about it."""
    code, shape = _stored_as(dtype_of(entry.dtype), entry.shape)
    num_bytes = math.prod(entry.shape) * dtype_of(entry.dtype).itemsize
    found = header.get(name)
    match found:
        case {"dtype": str(c), "shape": list(s), "data_offsets": [int(start), int(end)]} if (
            (c, s) == (code, shape) and start >= 0 and end - start == num_bytes
        ):
            return start, end
    raise CheckpointError(
        f"{path}: tensor {name!r}: the manifest expects {code} {shape}, the file's header says {found}; "
        "the two do not belong together: restore the directory from a copy or use another checkpoint"
    )


def _read_into(path: Path, file: Any, view: memoryview, num_bytes: int) -> None:
    done = 0
    while done < num_bytes:
        count = file.readinto(view[done:])
        if not count:
            raise CheckpointError(f"{path}: truncated: it ends {num_bytes - done} bytes early")
        done += count
