"""Reading files of `paddle.save` (`.pdparams`, `.pdopt`): tensors in dicts and lists, mapped, and plain values."""

import json
import math
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oarlock.checkpoint.derived import Derived
from oarlock.checkpoint.huggingface import read_index
from oarlock.checkpoint.manifest import CheckpointError
from oarlock.checkpoint.paddle.ranges import RangeFile
from oarlock.checkpoint.paddle.records import Array, Malformed, Metadata
from oarlock.checkpoint.paddle.unpickling import MAX_OBJECT_BYTES, Unpickler
from oarlock.checkpoint.source import TensorSource
from oarlock.checkpoint.stored import StoredPiece, StoredTensor

_MAX_DEPTH = 32
_HEADERS = 100_000_000  # safetensors' limit of its header; as such a length, the first bytes of a pickle are larger
_CUT = "UnpackBigParamInfor@@"  # arrays above 1 GiB, which protocols 2 and 3 cut
_ONE = "tensor"
_NAMES = "StructuredToParameterName@@"


def is_pickle(path: Path) -> bool:
    """Whether a file begins as pickles of protocols 2 to 5 do, and not with the length of a safetensors header."""
    with open(path, "rb") as file:
        head = file.read(8)
    return (
        head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5") and int.from_bytes(head, "little") > _HEADERS
    )


def open_state_file(path: str | PathLike[str]) -> TensorSource:
    """The tensors of a file that `paddle.save` wrote; they are read when they are asked for.

    Names inside of nested dicts and lists are joined by dots. Other values are in `metadata`, as JSON under such names;
    so is `StructuredToParameterName@@`, the names that an optimizer has for the parameters, where they differ. A file
    that is one tensor has the name `tensor`.

    Args:
        path: the file; or a folder with one `.pdparams`, with `model_state.pdparams`, or with several and their index
            (`model_state.pdparams.index.json`).

    Raises:
        CheckpointError: unreadable, or it holds anything but arrays and plain values.
    """
    path = Path(path)
    if not path.is_dir():
        return _opened(path)[0]
    files = state_files(path)
    if len(files) == 1:
        return _opened(files[0])[0]
    index = _index(path)
    if index is None:
        raise CheckpointError(
            f"{path} has several files without an index ({', '.join(f.name for f in files)}); open one"
        )
    tensors: dict[str, StoredTensor | Derived] = {}
    metadata: dict[str, str] = {}
    weight_map = read_index(index)
    for file in dict.fromkeys(weight_map.values()):
        source = _opened(path / file)[0]
        for name, home in weight_map.items():
            if home == file and name not in source.tensors:
                raise CheckpointError(f"{path / file} lacks tensor {name!r} of the index")
        tensors |= {name: tensor for name, tensor in source.tensors.items() if weight_map.get(name) == file}
        metadata |= source.metadata
    return TensorSource(str(path), tensors, metadata=metadata)


def state_files(path: Path) -> list[Path]:
    """The weights of a folder of `.pdparams` files: one, or those with an index; none of a folder with safetensors."""
    files = sorted(path.glob("*.pdparams")) if path.is_dir() and not any(path.glob("*.safetensors")) else []
    main = path / "model_state.pdparams"
    return [main] if main in files else files


def _index(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("*.pdparams.index.json"))), None)


def load_state_file(path: str | PathLike[str]) -> Any:
    """What a file of `paddle.save` holds, as `paddle.load` gives it: dicts and lists with tensors (of torch) in them.

    Where the file names its tensors, as (name, array), arrays without a name are arrays of numpy; else all are tensors.

    `save_state_file` is the inverse.

    Raises:
        CheckpointError: see open_state_file.
    """
    source, value = _opened(Path(path))
    if isinstance(value, dict):
        value.pop(_NAMES, None)
    return _filled("", value, source.read(), _is_named(value))


def _opened(path: Path) -> tuple[TensorSource, Any]:
    file, value = read_pickle(path)
    tensors: dict[str, StoredTensor] = {}
    metadata: dict[str, str] = {}
    stored: dict[int, StoredTensor] = {}
    if isinstance(value, Metadata):
        raise CheckpointError(f"{path}: holds metadata of FlexCheckpoint and no tensors; open its folder")
    try:
        cut = _cut_arrays(value)
        for name, (shape, arrays) in cut.items():
            tensors[name] = _joined(file, name, shape, arrays)
        for name, leaf in leaves(value):
            if name in tensors or name in metadata:
                raise Malformed(f"two values have the name {name!r}")
            if isinstance(leaf, Array):
                if id(leaf) not in stored:
                    stored[id(leaf)] = _joined(file, name, leaf.shape, [leaf])
                tensors[name] = stored[id(leaf)]
            elif name != f"{_NAMES}.{leaf}":
                metadata[name] = json.dumps(leaf)
        for name, (_, arrays) in cut.items():
            value[name] = arrays[0]  # stands for all of them
    except Malformed as error:
        raise CheckpointError(f"{path}: {error}") from None
    return TensorSource(str(path), tensors, metadata=metadata), value


def _is_named(value: Any) -> bool:
    if isinstance(value, dict | list | tuple):
        named = isinstance(value, tuple) and tensor_of(value) is not None
        return named or any(map(_is_named, value.values() if isinstance(value, dict) else value))
    return False


def _filled(name: str, value: Any, tensors: Mapping[str, Tensor], named: bool) -> Any:
    """The value with its arrays replaced by tensors; it is known to be nested but a little."""
    if tensor_of(value) is not None:
        tensor = tensors[name or _ONE]
        if not named or not isinstance(value, Array):
            return tensor
        return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    if isinstance(value, dict):
        return {key: _filled(_inside(name, key), item, tensors, named) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_filled(_inside(name, index), item, tensors, named) for index, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    return value


def read_pickle(path: Path) -> tuple[RangeFile, Any]:
    """A file, and what it holds, with arrays that are not read yet.

    Raises:
        CheckpointError: unreadable, or no pickle of Paddle.
    """
    file = RangeFile(path)
    try:
        return file, Unpickler(file.bytes.numpy().data).load()
    except Malformed as error:
        raise CheckpointError(f"{path}: not readable as a file of paddle.save: {error}") from None


def leaves(value: object) -> Iterator[tuple[str, Any]]:
    """The arrays of nested dicts, lists and tuples, and the plain values, each under the names joined by dots.

    Raises:
        Malformed: nested too deeply, too many of them (one container in many places multiplies), or another value.
    """
    room = MAX_OBJECT_BYTES
    ahead: list[Iterator[tuple[str, Any]]] = [iter([(_ONE if tensor_of(value) is not None else "", value)])]
    while ahead:
        for name, item in ahead[-1]:
            room -= 1000 + len(name) + (len(item) if isinstance(item, str) else 0)
            if room < 0:
                raise Malformed("it holds more values than any checkpoint; it is a bomb or damaged")
            if (array := tensor_of(item)) is not None:
                yield name, array
            elif item is None or isinstance(item, bool | int | float | str):
                yield name, item
            elif isinstance(item, dict | list | tuple):
                if len(ahead) > _MAX_DEPTH:
                    raise Malformed(f"values nested deeper than {_MAX_DEPTH}")
                ahead.append(_items(name, item))
                break
            else:
                raise Malformed(f"{name!r} is a {type(item).__name__}, neither an array nor a plain value")
        else:
            ahead.pop()


def _items(name: str, value: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if not isinstance(key, str | int | float):
            raise Malformed(f"a key that is a {type(key).__name__}")
        yield _inside(name, key), item


def _inside(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)


def tensor_of(value: object) -> Array | None:
    """The array of a tensor, which Paddle also writes as (name, array)."""
    match value:
        case tuple((str(), Array() as array)) | (Array() as array):
            if not array.complete:
                raise Malformed("an array without a state")
            return array
    return None


def _cut_arrays(value: object) -> dict[str, tuple[tuple[int, ...], list[Array]]]:
    """Arrays that are there in parts, with their shapes; the parts are taken out."""
    if not isinstance(value, dict) or _CUT not in value:
        return {}
    found = {}
    for name, entry in _table(value.pop(_CUT)).items():
        match entry:
            case {"OriginShape": tuple(shape), "slices": list(parts)} if all(type(n) is int and n > 0 for n in shape):
                arrays = [value.pop(part, None) for part in parts if isinstance(part, str)]
                if all(isinstance(array, Array) and array.complete for array in arrays):
                    found[str(name)] = shape, arrays
                    continue
        raise Malformed(f"the parts of {name!r} are not there")
    return found


def _table(value: object) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"{_CUT} is a {type(value).__name__}")
    return value


def _joined(file: RangeFile, name: str, shape: tuple[int, ...], arrays: list[Array]) -> StoredTensor:
    dtype, start = arrays[0].dtype, 0
    pieces: list[StoredPiece] = []
    for index, array in enumerate(arrays):
        stop = start + math.prod(array.shape)
        if array.dtype != dtype or stop > math.prod(shape):
            raise Malformed(f"the parts of {name!r} do not fit together")
        pieces += file.pieces(f"{name}@{index}" if len(arrays) > 1 else name, array, shape, start, stop)
        start = stop
    if start != math.prod(shape):
        raise Malformed(f"{name!r} of shape {list(shape)} has {start} elements")
    return StoredTensor(dtype, shape, tuple(pieces))
