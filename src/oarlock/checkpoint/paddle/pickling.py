"""Writing what Paddle loads: pickles of tensors and plain values, and the metadata of FlexCheckpoint.

Tensors go into the file from their own memory. The classes that a pickle names are written by name; neither numpy's nor
Paddle's are needed.
"""

import dataclasses
import itertools
import os
import secrets
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from oarlock.checkpoint.directory import sync_directory
from oarlock.checkpoint.paddle.records import FLEX_MODULE, NUMPY_CODES, Record
from oarlock.checkpoint.tensor_file import HashedFile
from oarlock.digest import tensor_bytes

_AS_INTEGERS = {torch.float8_e4m3fn: "i1", torch.float8_e5m2: "i1"}  # as paddle.save writes them
_NOT_PADDLES = (torch.uint32, torch.uint64)


def save_state_file(path: str | PathLike[str], state: object) -> None:
    """Write a file that `paddle.load` reads: a `.pdparams` or `.pdopt` of protocol 4.

    The file appears under its name when it is complete and on the disk; an older one is replaced.

    Args:
        path: the file.
        state: dicts, lists and tuples of tensors, arrays, numbers, texts and None. 8-bit floats become int8, as
            `paddle.save` writes them.

    Raises:
        TypeError: another value; ValueError: a dtype that Paddle does not have.
    """
    path = Path(path)
    parts = list(pickled(state))
    temporary = path.with_name(f".{path.name}.tmp-{secrets.token_hex(6)}")
    try:
        with HashedFile(temporary) as file:
            for part in parts:
                file.write(tensor_bytes(part).data if isinstance(part, Tensor) else part)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def pickled(value: object) -> Iterator[bytes | Tensor]:
    """The parts of a pickle, one after the other.

    Raises:
        TypeError, ValueError: see save_state_file.
    """
    yield b"\x80\x04"
    yield from _Pickler().parts(value)
    yield b"."


class _Pickler:
    def __init__(self) -> None:
        self._memo: dict[object, int] = {}

    def parts(self, value: object) -> Iterator[bytes | Tensor]:
        match value:
            case None:
                yield b"N"
            case bool():
                yield b"\x88" if value else b"\x89"
            case int():
                yield self._integer(value)
            case float():
                yield struct.pack(">cd", b"G", value)
            case str():
                yield self._text(value)
            case Tensor():
                yield from self._tensor(value)
            case np.ndarray():
                yield from self._array(value)
            case Record():
                fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}  # type: ignore[arg-type]
                yield self._global(FLEX_MODULE, type(value).__name__) + b")\x81"
                yield from self.parts(fields)
                yield b"b"
            case Mapping():
                yield b"}"
                yield from self._batches(value.items(), b"u")
            case list():
                yield b"]"
                yield from self._batches(((item,) for item in value), b"e")
            case tuple():
                yield b"("
                for item in value:
                    yield from self.parts(item)
                yield b"t"
            case _:
                raise TypeError(f"a file of Paddle holds tensors and plain values, not {type(value).__name__}")

    def _batches(self, items: Iterable[tuple[object, ...]], end: bytes) -> Iterator[bytes | Tensor]:
        """Readers keep what belongs to a container on their stack, so a long one is filled step by step."""
        remaining = iter(items)
        while batch := list(itertools.islice(remaining, 1000)):
            yield b"("
            for item in itertools.chain.from_iterable(batch):
                yield from self.parts(item)
            yield end

    def _tensor(self, tensor: Tensor) -> Iterator[bytes | Tensor]:
        code = _AS_INTEGERS.get(tensor.dtype) or NUMPY_CODES.get(tensor.dtype)
        if code is None or tensor.dtype in _NOT_PADDLES:
            raise ValueError(f"Paddle has no dtype {tensor.dtype}; cast the tensor")
        yield from self._coded(tensor.detach(), code)

    def _array(self, array: np.ndarray) -> Iterator[bytes | Tensor]:
        code = array.dtype.str[1:]
        if code not in NUMPY_CODES.values() or array.dtype.str[0] == ">":
            raise ValueError(f"a file of Paddle holds no array of dtype {array.dtype}; convert it")
        yield from self._coded(torch.from_numpy(array), code)

    def _coded(self, tensor: Tensor, code: str) -> Iterator[bytes | Tensor]:
        order = "|" if tensor.dtype.itemsize == 1 else "<"
        size = tensor.numel() * tensor.dtype.itemsize
        yield self._global("numpy.core.multiarray", "_reconstruct") + self._global("numpy", "ndarray")
        yield b"K\x00\x85C\x01b\x87R(K\x01("
        yield b"".join(self._integer(n) for n in tensor.shape) + b"t" + self._dtype(code, order) + b"\x89"
        yield struct.pack("<cI", b"B", size) if size < 1 << 32 else struct.pack("<cQ", b"\x8e", size)
        yield tensor
        yield b"tb"

    def _dtype(self, code: str, order: str) -> bytes:
        made = self._global("numpy", "dtype") + self._text(code) + b"\x89\x88\x87R(K\x03" + self._text(order)
        return made + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"

    def _global(self, module: str, name: str) -> bytes:
        return self._once((module, name), lambda: f"c{module}\n{name}\n".encode())

    def _text(self, text: str) -> bytes:
        data = text.encode()
        return self._once(text, lambda: struct.pack("<cI", b"X", len(data)) + data)

    def _once(self, key: object, make: Callable[[], bytes]) -> bytes:
        if key in self._memo:
            return struct.pack("<cI", b"j", self._memo[key])
        self._memo[key] = len(self._memo)
        return make() + b"\x94"

    @staticmethod
    def _integer(value: int) -> bytes:
        if 0 <= value < 256:
            return struct.pack("<cB", b"K", value)
        if -(1 << 31) <= value < 1 << 31:
            return struct.pack("<ci", b"J", value)
        data = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
        return struct.pack("<cB", b"\x8a", len(data)) + data
