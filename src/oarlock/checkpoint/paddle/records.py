"""What a pickle of Paddle may hold besides plain values: arrays that stay in the file, and FlexCheckpoint's records.

Everything is made anew here, by name: nothing that a pickle names is ever imported or called.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch


class Malformed(Exception):
    """The file is not what Paddle writes; the message says where and what."""


class Span(NamedTuple):
    """Bytes [start, stop) of the file, not read yet; `text` = UTF-8 of Latin-1, as protocol 2 writes bytes."""

    start: int
    stop: int
    text: bool = False


Data = Span | bytes

MAX_DIMS = 9
"""Of a tensor of Paddle."""

# Paddle has no 16-bit unsigned integers: it hands the bits of bfloat16 to numpy as uint16, and takes them back so.
_DTYPES = {
    "f2": torch.float16,
    "f4": torch.float32,
    "f8": torch.float64,
    "c8": torch.complex64,
    "c16": torch.complex128,
    "i1": torch.int8,
    "i2": torch.int16,
    "i4": torch.int32,
    "i8": torch.int64,
    "u1": torch.uint8,
    "u2": torch.bfloat16,
    "u4": torch.uint32,
    "u8": torch.uint64,
    "b1": torch.bool,
}
NUMPY_CODES = {dtype: code for code, dtype in _DTYPES.items()}


class DtypeRecord:
    """A numpy.dtype."""

    def __init__(self, code: object, align: object = False, copy: object = True) -> None:
        if not isinstance(code, str) or code not in _DTYPES:
            raise Malformed(f"an array of dtype {code!r:.40}, which holds no numbers of Paddle")
        self.code = code

    def build(self, state: object) -> None:
        """Take the byte order."""
        match state:
            case (3 | 4, "<" | "|" | "=", None, None, None, *_):
                return
            case (3 | 4, ">", *_):
                raise Malformed(f"an array of big-endian {self.code}; save it on a little-endian machine")
        raise Malformed("a dtype with fields")

    @property
    def dtype(self) -> torch.dtype:
        """As a tensor of Paddle has it."""
        return _DTYPES[self.code]


class Array:
    """A numpy array: where its elements are, and what they are.

    Attributes:
        fortran: the elements are in column-major order.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    fortran: bool
    data: Data

    def build(self, state: object) -> None:
        """Take what numpy.ndarray.__setstate__ takes: (version, shape, dtype, is Fortran, data)."""
        match state:
            case (1, tuple(shape), DtypeRecord() as dtype, bool(fortran), Span() | bytes() | str() as data) if (
                not self.complete
            ):
                self.dtype, self.shape, self.fortran = dtype.dtype, shape, fortran and len(shape) > 1
                self.data = data.encode("latin1") if isinstance(data, str) else data
                self._check()
            case _:
                raise Malformed("an array in a form that numpy does not write")

    @classmethod
    def of(cls, dtype: torch.dtype, shape: tuple[int, ...], data: Data) -> Self:
        """An array whose elements are in row-major order."""
        array = cls()
        array.dtype, array.shape, array.fortran, array.data = dtype, shape, False, data
        array._check()
        return array

    def _check(self) -> None:
        if not _is_numbers(self.shape):
            raise Malformed(f"an array of shape {_short(self.shape)}")
        expected, found = math.prod(self.shape) * self.dtype.itemsize, self._num_bytes
        if not found[0] <= expected <= found[1]:
            raise Malformed(f"an array of shape {list(self.shape)} with {found[1]} bytes instead of {expected}")

    @property
    def complete(self) -> bool:
        """Whether it has been filled."""
        return hasattr(self, "data")

    @property
    def _num_bytes(self) -> tuple[int, int]:
        """At least and at most; text is one or two bytes per byte."""
        size = len(self.data) if isinstance(self.data, bytes) else self.data.stop - self.data.start
        return (-(-size // 2), size) if isinstance(self.data, Span) and self.data.text else (size, size)


def _is_numbers(value: object) -> bool:
    return isinstance(value, tuple) and len(value) <= MAX_DIMS and all(type(n) is int and n >= 0 for n in value)


def _is_numbers_or_none(value: object) -> bool:
    return value is None or _is_numbers(value)


def _is_range(value: object) -> bool:
    return value is None or (_is_numbers(value) and len(value) == 2 and value[0] <= value[1])  # type: ignore[index,arg-type]


def _is(*kinds: type) -> Callable[[object], bool]:
    return lambda value: type(value) in kinds


class Record:
    """A frozen dataclass whose fields come from the pickle, once.

    Attributes:
        FIELDS: field -> what it is where a pickle of an older Paddle lacks it, and whether a value fits.
    """

    FIELDS: ClassVar[Mapping[str, tuple[Any, Callable[[Any], bool]]]]
    complete: ClassVar[bool] = False

    def build(self, state: object) -> None:
        """Take the fields."""
        if self.complete or not isinstance(state, dict):
            raise Malformed(f"a {type(self).__name__} in a form that Paddle does not write")
        fields = {}
        for name, (default, check) in self.FIELDS.items():
            fields[name] = value = state.get(name, default)
            if not check(value):
                raise Malformed(f"a {type(self).__name__} whose {name} is {_short(value)}")
        self.__dict__.update(fields, complete=True)


@dataclass(frozen=True)
class LocalTensorMetadata(Record):
    """A box of a tensor, or consecutive elements [start, stop) of a box."""

    global_offset: tuple[int, ...]
    local_shape: tuple[int, ...]
    dtype: str
    global_shape: tuple[int, ...] | None
    is_flattened: bool
    flattened_range: tuple[int, int] | None

    FIELDS: ClassVar = {
        "global_offset": (None, _is_numbers),
        "local_shape": (None, _is_numbers),
        "dtype": (None, _is(str)),
        "global_shape": (None, _is_numbers_or_none),
        "is_flattened": (False, _is(bool)),
        "flattened_range": (None, _is_range),
    }


@dataclass(frozen=True)
class LocalTensorIndex(Record):
    """What names such a part."""

    tensor_key: str
    global_offset: tuple[int, ...]
    is_flattened: bool
    flattened_range: tuple[int, int] | None
    replica_id: int | None
    local_shape: tuple[int, ...] | None

    FIELDS: ClassVar = {
        "tensor_key": (None, _is(str)),
        "global_offset": (None, _is_numbers),
        "is_flattened": (False, _is(bool)),
        "flattened_range": (None, _is_range),
        "replica_id": (None, _is(int, type(None))),
        "local_shape": (None, _is_numbers_or_none),
    }


def _are_parts(table: object) -> bool:
    return isinstance(table, dict) and all(
        type(key) is str
        and isinstance(parts, list)
        and all(isinstance(part, LocalTensorMetadata) and part.complete for part in parts)
        for key, parts in table.items()
    )


def _are_homes(table: object) -> bool:
    return isinstance(table, dict) and all(
        isinstance(key, LocalTensorIndex) and type(file) is str for key, file in table.items()
    )


@dataclass(frozen=True)
class Metadata(Record):
    """A FlexCheckpoint: what there is, and which file has which part."""

    state_dict_metadata: dict[str, list[LocalTensorMetadata]]
    storage_metadata: dict[LocalTensorIndex, str]
    flat_mapping: dict[str, tuple[str, ...]] | None

    FIELDS: ClassVar = {
        "state_dict_metadata": (None, _are_parts),
        "storage_metadata": (None, _are_homes),
        "flat_mapping": (None, _is(dict, type(None))),
    }


@dataclass(frozen=True)
class Known:
    """A class or function that a pickle may name.

    Attributes:
        call: makes what calling it gives; None = it is only named.
        new: a record that is made empty and filled later.
    """

    name: str
    call: Callable[..., Any] | None = None
    new: type[Record] | None = None


def _reconstruct(kind: object, shape: object, code: object) -> Array:
    if not (isinstance(kind, Known) and kind.name == "numpy.ndarray"):
        raise Malformed("an array of a subclass of numpy.ndarray")
    return Array()


def _scalar(dtype: object, data: object) -> bool | int | float | complex:
    if isinstance(data, str):
        data = data.encode("latin1")
    if not isinstance(dtype, DtypeRecord) or not isinstance(data, bytes) or len(data) != dtype.dtype.itemsize:
        raise Malformed("a number in a form that numpy does not write")
    return np.frombuffer(data, dtype.code)[0].item()


def _encode(text: object, coding: object) -> Data:
    if coding != "latin1" or not isinstance(text, str | Span):
        raise Malformed("an encoding of text that pickle does not write")
    if isinstance(text, Span):
        return text
    try:
        return text.encode("latin1")
    except UnicodeEncodeError:
        raise Malformed("bytes with characters that are none") from None


def _tuple(items: object) -> tuple[object, ...]:
    if not isinstance(items, tuple):
        raise Malformed("a call of tuple in a form that Paddle does not write")
    return items


def _static_tensor(expression: object, names: object) -> Array:
    """Paddle writes a tensor of a static program as eval('data', {'data': array}); only this, and nothing is run."""
    match expression, names:
        case "data", {"data": Array() as array}:
            return array
    raise Malformed("it calls eval")


FLEX_MODULE = "paddle.distributed.flex_checkpoint.dcp.metadata"
KNOWN = {
    ("numpy", "ndarray"): Known("numpy.ndarray"),
    ("numpy", "dtype"): Known("numpy.dtype", DtypeRecord),
    ("_codecs", "encode"): Known("_codecs.encode", _encode),
    ("collections", "OrderedDict"): Known("collections.OrderedDict", lambda: {}),
    **{
        (f"numpy.{core}.multiarray", name): Known(f"numpy.{core}.multiarray.{name}", call)
        for core in ("core", "_core")
        for name, call in (("_reconstruct", _reconstruct), ("scalar", _scalar))
    },
    **{
        (builtins, name): Known(name, call)
        for builtins in ("builtins", "__builtin__")
        for name, call in (("tuple", _tuple), ("eval", _static_tensor), ("bytes", lambda: b""))
    },
    **{
        (module, record.__name__): Known(record.__name__, new=record)
        for module in (FLEX_MODULE, "paddle.distributed.checkpoint.metadata")
        for record in (Metadata, LocalTensorMetadata, LocalTensorIndex)
    },
}


def _short(value: object) -> str:
    return f"{value!r:.60}" if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
