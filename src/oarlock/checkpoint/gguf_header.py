"""The header of a GGUF file: metadata, and where the tensors lie. Parsed from a memory map, within bounded memory.

    "GGUF", version u32, number of tensors u64, number of pairs u64
    pairs:    key, type u32, value                 strings are a length u64 and UTF-8; arrays a type u32 and a count u64
    tensors:  name, number of dims u32, dims u64 (the fastest first), type u32, offset u64 from the data
    data:     at the next multiple of `general.alignment` (32)

All numbers are little-endian. Arrays are not decoded before somebody asks for one: a vocabulary costs nothing to skip.

Source: ggml-org/ggml, docs/gguf.md.
"""

import itertools
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from oarlock.checkpoint.gguf_blocks import BLOCKS, PLAIN, UNREADABLE
from oarlock.checkpoint.manifest import CheckpointError
from oarlock.checkpoint.mapped_file import MappedFile

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_HEADER_BYTES = 256 << 20
_MAX_PAIRS, _MAX_TENSORS, _MAX_DIMS = 100_000, 1_000_000, 4
_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

Value = bool | int | float | str


class Array(NamedTuple):
    """An array of the metadata, as it lies in the file."""

    kind: int
    length: int
    start: int


class Place(NamedTuple):
    """A tensor: the name of its type, its shape in torch's order, and its bytes in the file."""

    kind: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says about itself.

    Args:
        path: the file.

    Raises:
        CheckpointError: no GGUF file, of another version or byte order, malformed, or with a tensor of a type that is
            not known; the message names the place.
    """

    path: Path

    @property
    def metadata(self) -> Mapping[str, Value | Array]:
        """Key -> value; see `array` for arrays."""
        return self._parsed[0]

    @property
    def tensors(self) -> Mapping[str, Place]:
        """Name -> place."""
        return self._parsed[1]

    @cached_property
    def mapped(self) -> MappedFile:
        """The file's bytes."""
        return MappedFile(self.path)

    def array(self, key: str) -> list[Value]:
        """The elements of an array of the metadata; CheckpointError if there is no array of this name."""
        found = self.metadata.get(key)
        if not isinstance(found, Array):
            raise CheckpointError(f"{self.path}: its metadata has no array {key!r}")
        return list(_Cursor(self, found.start).elements(found, key))

    @cached_property
    def _parsed(self) -> tuple[dict[str, Value | Array], dict[str, Place]]:
        cursor = _Cursor(self)
        num_tensors, num_pairs = cursor.opening()
        metadata: dict[str, Value | Array] = {}
        for _ in range(num_pairs):
            key = cursor.string("a key of the metadata")
            if key in metadata:
                raise cursor.error(f"the key {key!r} is there twice")
            metadata[key] = cursor.value(cursor.number("I", key), key)
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 8 or alignment % 8:
            raise cursor.error(f"general.alignment is {alignment!r}; it must be a multiple of 8")
        infos = {}
        for _ in range(num_tensors):
            name = cursor.string("the name of a tensor")
            if name in infos:
                raise cursor.error(f"the tensor {name!r} is there twice")
            infos[name] = cursor.tensor(name)
        data_start = -(-cursor.position // alignment) * alignment
        places = {}
        for name, (kind, shape, offset, num_bytes) in infos.items():
            start = data_start + offset
            if offset % alignment:
                raise cursor.error(f"tensor {name!r} begins at {offset}, which is no multiple of {alignment}")
            if start + num_bytes > cursor.size:
                raise cursor.error(
                    f"tensor {name!r} ({kind} {list(shape)}, {num_bytes} bytes) ends at byte {start + num_bytes}, "
                    f"the file at {cursor.size}; it is truncated or malformed"
                )
            places[name] = Place(kind, shape, start, start + num_bytes)
        spans = sorted((place.start, place.stop, name) for name, place in places.items() if place.start < place.stop)
        for (_, stop, name), (start, _, other) in itertools.pairwise(spans):
            if start < stop:
                raise cursor.error(f"tensors {name!r} and {other!r} overlap; it is malformed")
        return metadata, places


class _Cursor:
    """A place in the header that moves on as it is read; never beyond the file's end or the limit of a header."""

    def __init__(self, header: GgufHeader, position: int = 0) -> None:
        self._path = header.path
        self._bytes = header.mapped.bytes.numpy().data
        self.size = len(self._bytes)
        self._limit = min(self.size, _MAX_HEADER_BYTES)
        self.position = position

    def error(self, problem: str) -> CheckpointError:
        """An error that names the file."""
        return CheckpointError(f"{self._path}: {problem}")

    def opening(self) -> tuple[int, int]:
        """Numbers of tensors and of pairs."""
        if self.size < 24 or bytes(self._bytes[:4]) != MAGIC:
            raise self.error("not a GGUF file")
        self.position = 4
        version = self.number("I", "the version")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
            told = "its numbers are big-endian" if swapped else f"GGUF version {version}"
            raise self.error(f"{told}; versions 2 and 3 in little-endian order are read")
        counts = self.number("Q", "the number of tensors"), self.number("Q", "the number of pairs")
        for count, most, what in zip(counts, (_MAX_TENSORS, _MAX_PAIRS), ("tensors", "pairs"), strict=True):
            if count > most or count * 13 > self.size:
                raise self.error(f"it claims to have {count} {what}; it is malformed")
        return counts

    def number(self, code: str, what: str) -> int:
        """An integer of struct's type `code`."""
        return int(self._unpack(code, what))

    def string(self, what: str) -> str:
        """A text."""
        start = self._skip_string(what)
        try:
            return str(self._bytes[start : self.position], "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} at byte {start} is not UTF-8 ({error.reason})") from None

    def value(self, kind: int, key: str) -> Value | Array:
        """A value of the metadata; the elements of an array are passed over."""
        if kind == _STRING:
            return self.string(f"the value of {key!r}")
        if kind != _ARRAY:
            return self._unpack(self._code(kind, key), key)
        array = Array(self.number("I", key), self.number("Q", key), self.position)
        if array.kind == _STRING:
            for _ in range(self._checked(array.length, 8, key)):
                self._skip_string(key)
        else:
            width = struct.calcsize(self._code(array.kind, key))
            self.position += self._checked(array.length, width, key) * width
        return array

    def elements(self, array: Array, key: str) -> Iterator[Value]:
        """What an array holds."""
        if array.kind == _STRING:
            for _ in range(array.length):
                yield self.string(f"an element of {key!r}")
        else:
            yield from struct.unpack_from(f"<{array.length}{_NUMBERS[array.kind]}", self._bytes, array.start)

    def tensor(self, name: str) -> tuple[str, tuple[int, ...], int, int]:
        """Type, shape, offset and size of a tensor."""
        num_dims = self.number("I", name)
        if num_dims > _MAX_DIMS:
            raise self.error(f"tensor {name!r} has {num_dims} dims; at most {_MAX_DIMS} are possible")
        shape = tuple(reversed([self.number("Q", name) for _ in range(num_dims)]))
        code, offset = self.number("I", name), self.number("Q", name)
        if code in PLAIN:
            kind, dtype = PLAIN[code]
            return kind, shape, offset, math.prod(shape) * dtype.itemsize
        if code not in BLOCKS:
            known = ", ".join(kind for kind, _ in PLAIN.values()) + ", " + ", ".join(b.name for b in BLOCKS.values())
            raise self.error(f"tensor {name!r} is of type {UNREADABLE.get(code, code)}; {known} are read")
        block = BLOCKS[code]
        if not shape or shape[-1] % block.num_values:
            raise self.error(f"tensor {name!r} of shape {list(shape)} does not consist of blocks of {block.num_values}")
        return block.name, shape, offset, math.prod(shape) // block.num_values * block.num_bytes

    def _unpack(self, code: str, what: str) -> Value:
        self._checked(1, struct.calcsize(code), what)
        [value] = struct.unpack_from(f"<{code}", self._bytes, self.position)
        self.position += struct.calcsize(code)
        return value

    def _skip_string(self, what: str) -> int:
        length = self.number("Q", what)
        start = self.position
        self.position += self._checked(length, 1, what)
        return start

    def _code(self, kind: int, key: str) -> str:
        if kind not in _NUMBERS:
            told = "an array of arrays" if kind == _ARRAY else f"of the unknown type {kind}"
            raise self.error(f"{key!r} of the metadata is {told}")
        return _NUMBERS[kind]

    def _checked(self, count: int, width: int, what: str) -> int:
        """`count`, if so many items of a width still fit."""
        if count * width > self._limit - self.position:
            end = "the file ends" if self._limit == self.size else f"a header may be {_MAX_HEADER_BYTES >> 20} MiB"
            raise self.error(f"{what} at byte {self.position} would take {count * width} bytes; {end}; it is malformed")
        return count
