"""Reading directories of torch.distributed.checkpoint (DCP).

Their `.metadata` is a pickle. It is read by an unpickler that knows only the classes which DCP itself writes there, so
no code of a stranger runs; tensors are read with torch's weights_only loader.
"""

import io
import pickle
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oarlock.checkpoint.boxes import Box, explain_cover
from oarlock.checkpoint.manifest import CheckpointError
from oarlock.checkpoint.source import TensorSource
from oarlock.checkpoint.stored import StoredPiece, StoredTensor

METADATA = ".metadata"

_DCP = "torch.distributed.checkpoint."
_KNOWN = {
    (_DCP + "metadata", "Metadata"),
    (_DCP + "metadata", "TensorStorageMetadata"),
    (_DCP + "metadata", "BytesStorageMetadata"),
    (_DCP + "metadata", "TensorProperties"),
    (_DCP + "metadata", "ChunkStorageMetadata"),
    (_DCP + "metadata", "MetadataIndex"),
    (_DCP + "metadata", "StorageMeta"),
    (_DCP + "metadata", "_MEM_FORMAT_ENCODING"),
    (_DCP + "filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib", "Path"),
}
_MALFORMED = (
    *(pickle.UnpicklingError, AttributeError, KeyError, TypeError, ValueError, EOFError, IndexError),
    *(OverflowError, MemoryError, RecursionError),
)


def open_dcp(path: str | PathLike[str]) -> TensorSource:
    """The tensors of a directory that torch.distributed.checkpoint saved; its other objects are left out.

    Raises:
        CheckpointError: no such directory, or its metadata is malformed or holds objects that DCP does not write.
    """
    path = Path(path)
    try:
        with open(path / METADATA, "rb") as file:
            metadata = _Unpickler(file).load()
        tensors = _tensors(path, metadata)
    except OSError as error:
        raise CheckpointError(f"{path / METADATA}: {error.strerror}; this is no directory of torch DCP") from error
    except _MALFORMED as error:
        raise CheckpointError(f"{path / METADATA}: not readable ({type(error).__name__}: {error})") from error
    return TensorSource(str(path), tensors)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        if module_name == "pathlib._local":  # where Python 3.13 has what others have in pathlib
            module_name = "pathlib"
        is_dtype = module_name == "torch" and isinstance(getattr(torch, global_name, None), torch.dtype)
        if is_dtype or (module_name, global_name) in _KNOWN:
            return super().find_class(module_name, global_name)
        raise pickle.UnpicklingError(f"it names {module_name}.{global_name}, which DCP does not write")


def _tensors(path: Path, metadata: Any) -> dict[str, StoredTensor]:
    storage = metadata.storage_data
    place = {(index.fqn, None if index.offset is None else tuple(index.offset)): storage[index] for index in storage}
    files: dict[str, _DcpFile] = {}
    tensors = {}
    for name, described in metadata.state_dict_metadata.items():
        if not hasattr(described, "chunks"):
            continue
        pieces = []
        for chunk in described.chunks:
            box = Box(tuple(chunk.offsets), tuple(chunk.sizes))
            info = place[name, box.offset]
            if Path(info.relative_path).name != info.relative_path:
                raise CheckpointError(f"{path / METADATA}: names the file {info.relative_path!r}, not in its folder")
            file = files.setdefault(info.relative_path, _DcpFile(path / info.relative_path))
            key = f"{name}@{','.join(map(str, box.offset))}"
            file.places[key] = (info.offset, info.length)
            pieces.append(StoredPiece(file, key, box))
        if problem := explain_cover(tuple(described.size), [piece.box for piece in pieces]):
            raise CheckpointError(f"{path / METADATA}: tensor {name!r} is not there exactly once: {problem}")
        tensors[name] = StoredTensor(described.properties.dtype, tuple(described.size), tuple(pieces))
    return tensors


class _DcpFile:
    """A `.distcp` file: streams of torch.save, one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.places: dict[str, tuple[int, int]] = {}
        self._last: tuple[str, Tensor] | None = None

    def tensor(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """A stored tensor, read whole; the last one is kept, for the next box of it."""
        if self._last is not None and self._last[0] == name:
            return self._last[1]
        self._last = None
        offset, length = self.places[name]
        try:
            with open(self.path, "rb") as file:
                file.seek(offset)
                stream = io.BytesIO(file.read(length))
            tensor = torch.load(stream, map_location="cpu", weights_only=True)
        except OSError as error:
            raise CheckpointError(f"{self.path}: {error.strerror}") from error
        except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
            reason = str(error).partition("\n")[0]
            raise CheckpointError(f"{self.path}: the stream of {name!r} is not readable ({reason})") from error
        found = (getattr(tensor, "dtype", None), tuple(getattr(tensor, "shape", ())))
        if found != (dtype, shape):
            raise CheckpointError(f"{self.path}: {name!r}: expected {dtype} {list(shape)}, found {found}")
        self._last = (name, tensor)
        return tensor

    def check(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """Whether the file reaches as far as the stream."""
        offset, length = self.places[name]
        size = self.path.stat().st_size if self.path.is_file() else 0
        if size < offset + length:
            raise CheckpointError(f"{self.path}: {size} bytes, but {name!r} ends at {offset + length}")

    def blocks_of(self, name: str, dtype: torch.dtype, shape: tuple[int, ...], box: Box) -> np.ndarray:
        """DCP keeps no digests."""
        return np.empty(0, dtype=np.int64)

    def check_blocks(self, blocks: np.ndarray) -> None:
        """DCP keeps no digests."""
