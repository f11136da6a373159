"""Reading directories of Paddle's FlexCheckpoint: `0.metadata`, and files `RANK_0.distcp` or `RANK_0.safetensors`."""

import math
import re
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path

import torch

from oarlock.checkpoint.boxes import Box, explain_cover
from oarlock.checkpoint.dtypes import dtype_from_safetensors, dtype_of
from oarlock.checkpoint.manifest import CheckpointError
from oarlock.checkpoint.mapped_file import MappedFile
from oarlock.checkpoint.paddle.ranges import RangeFile
from oarlock.checkpoint.paddle.records import (
    Array,
    LocalTensorIndex,
    LocalTensorMetadata,
    Malformed,
    Metadata,
    Span,
)
from oarlock.checkpoint.paddle.state_file import read_pickle, tensor_of
from oarlock.checkpoint.source import TensorSource
from oarlock.checkpoint.stored import StoredPiece, StoredTensor

_METADATA = re.compile(r"(\d+)\.metadata")
_MAX_PIECES = 1 << 22
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def flex_metadata(path: Path) -> Path | None:
    """The metadata of a directory of FlexCheckpoint, of several the one with the highest number, as Paddle takes it.

    `path` may also be one of them. None = no such directory or file.
    """
    if path.is_file():
        return path if _METADATA.fullmatch(path.name) else None
    if not path.is_dir():
        return None
    numbers = {int(match[1]): file for file in path.iterdir() if (match := _METADATA.fullmatch(file.name))}
    return numbers[max(numbers)] if numbers else None


def open_flex_checkpoint(path: str | PathLike[str]) -> TensorSource:
    """The tensors that `paddle.distributed.save_state_dict` wrote, whatever the ranks and their layout were.

    Args:
        path: the directory; or the `N.metadata` in it, where several checkpoints share one.

    Raises:
        CheckpointError: none, files are missing or damaged, or they do not hold every element exactly once.
    """
    file = flex_metadata(Path(path))
    if file is None:
        raise CheckpointError(f"{path}: no directory of FlexCheckpoint with a file N.metadata")
    _, metadata = read_pickle(file)
    if not isinstance(metadata, Metadata) or not metadata.complete:
        raise CheckpointError(f"{file}: holds no metadata of FlexCheckpoint")
    homes = _homes(file, metadata.storage_metadata)
    files: dict[str, tuple[RangeFile, Mapping[str, Array]]] = {}
    tensors, num_pieces = {}, 0
    for name, listed in metadata.state_dict_metadata.items():
        parts = list(dict.fromkeys(listed))
        try:
            shape, dtype = _shape(parts), dtype_of(parts[0].dtype)
            pieces: list[StoredPiece] = []
            for part in parts:
                home = homes.get((name, part.global_offset, part.flattened_range))
                if home is None:
                    raise Malformed(f"no file has the part at {list(part.global_offset)}")
                if home not in files:
                    files[home] = _arrays(file.parent / home)
                pieces += _pieces(*files[home], name, part, dtype)
            num_pieces += len(pieces)
            if num_pieces > _MAX_PIECES:
                raise Malformed(f"more than {_MAX_PIECES} pieces; the metadata are a bomb or damaged")
            if problem := explain_cover(shape, [piece.box for piece in pieces]):
                raise Malformed(f"it is not there exactly once: {problem}")
        except (Malformed, ValueError) as error:
            raise CheckpointError(f"{file}: tensor {name!r}: {error}") from None
        tensors[name] = StoredTensor(dtype, shape, tuple(pieces))
    return TensorSource(str(path), tensors)


_Part = tuple[str, tuple[int, ...], tuple[int, int] | None]


def _homes(metadata: Path, storage: Mapping[LocalTensorIndex, str]) -> dict[_Part, str]:
    """The file of each part: of its copies the first that is there."""
    copies: dict[_Part, dict[int, str]] = {}
    for index, file in storage.items():
        if Path(file).name != file:
            raise CheckpointError(f"{metadata}: names the file {file!r}, which is not in its folder")
        part = (index.tensor_key, index.global_offset, index.flattened_range)
        copies.setdefault(part, {})[index.replica_id or 0] = file
    there = {file: (metadata.parent / file).is_file() for file in set(storage.values())}
    return {
        part: next((files[n] for n in sorted(files) if there[files[n]]), files[min(files)])
        for part, files in copies.items()
    }


def _shape(parts: list[LocalTensorMetadata]) -> tuple[int, ...]:
    """Of the whole tensor; older versions of Paddle do not say it."""
    if not parts:
        raise Malformed("it has no parts")
    known = parts[0].global_shape
    shape = tuple(map(max, zip(*(_box(part).stop for part in parts), strict=True))) if known is None else known
    for part in parts:
        if len(part.global_offset) != len(shape) or len(part.local_shape) != len(shape):
            raise Malformed(f"a part of shape {list(part.local_shape)} of a tensor of shape {list(shape)}")
        if part.global_shape != known or part.dtype != parts[0].dtype:
            raise Malformed("its parts have different dtypes or belong to different shapes")
    return shape


def _box(part: LocalTensorMetadata) -> Box:
    return Box(part.global_offset, part.local_shape)


def _pieces(
    file: RangeFile, arrays: Mapping[str, Array], name: str, part: LocalTensorMetadata, dtype: torch.dtype
) -> Iterable[StoredPiece]:
    array = arrays.get(name)
    if array is None:
        raise Malformed(f"{file.path.name} does not hold it; the files are of another save than the metadata")
    start, stop = part.flattened_range or (0, math.prod(part.local_shape))
    shape = (stop - start,) if part.flattened_range else part.local_shape
    if not _has_bits_of(array.dtype, dtype) or math.prod(array.shape) != stop - start:
        raise Malformed(
            f"{file.path.name} holds {array.dtype} {list(array.shape)} instead of {dtype} {list(shape)}; the files are "
            "of another save than the metadata"
        )
    for piece in file.pieces(name, array, part.local_shape, start, stop):
        offset = tuple(a + b for a, b in zip(piece.box.offset, part.global_offset, strict=True))
        yield StoredPiece(file, piece.name, Box(offset, piece.box.size))


def _has_bits_of(stored: torch.dtype, dtype: torch.dtype) -> bool:
    """numpy has no bfloat16 and no 8-bit floats, so Paddle stores their bits as integers."""
    as_integers = (dtype in _FLOAT8 and stored in (torch.int8, torch.uint8)) or (
        dtype == torch.bfloat16 and stored == torch.uint16
    )
    return stored == dtype or as_integers


def _arrays(path: Path) -> tuple[RangeFile, Mapping[str, Array]]:
    """The arrays of one rank's file."""
    if path.suffix == ".safetensors":
        return RangeFile(path), _safetensors(MappedFile(path))
    file, value = read_pickle(path)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {type(value).__name__} instead of tensors under names")
    return file, {str(key): array for key, item in value.items() if (array := tensor_of(item)) is not None}


def _safetensors(file: MappedFile) -> dict[str, Array]:
    arrays = {}
    data_start = 8 + int.from_bytes(file.bytes[:8].numpy().tobytes(), "little")
    for name, entry in file.header.items():
        match entry:
            case {"dtype": str(code), "shape": list(shape), "data_offsets": [int(start), int(stop)]}:
                dtype = dtype_from_safetensors(code)
                if dtype is None:
                    raise CheckpointError(
                        f"{file.path}: tensor {name!r} has dtype {code}, which this torch cannot hold"
                    )
                if start >= 0 and data_start + stop <= len(file.bytes):
                    arrays[name] = Array.of(dtype, tuple(shape), Span(data_start + start, data_start + stop))
                    continue
        if name != "__metadata__":
            raise CheckpointError(f"{file.path}: the header's entry of tensor {name!r} is malformed: {entry}")
    return arrays
