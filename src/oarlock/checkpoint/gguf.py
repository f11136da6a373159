"""Reading GGUF files: plain tensors as views of the file, quantised ones computed from the blocks that are needed."""

from fractions import Fraction
from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from oarlock.checkpoint.aoa.algebra import Relation, whole
from oarlock.checkpoint.aoa.quantized import Computed
from oarlock.checkpoint.boxes import Box
from oarlock.checkpoint.derived import Derived
from oarlock.checkpoint.gguf_blocks import BLOCKS, PLAIN, BlockType
from oarlock.checkpoint.gguf_header import MAGIC, Array, GgufHeader, Place
from oarlock.checkpoint.manifest import CheckpointError
from oarlock.checkpoint.source import TensorSource
from oarlock.checkpoint.stored import StoredPiece, StoredTensor

_BLOCKS = {block.name: block for block in BLOCKS.values()}
_DTYPES = dict(PLAIN.values())


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF does."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(4) == MAGIC


def open_gguf(path: str | PathLike[str] | GgufHeader, dtype: torch.dtype = torch.float32) -> TensorSource:
    """The tensors of a GGUF file under its own names; nothing is read before it is asked for.

    A box of a quantised tensor is computed in float32 from the blocks that overlap it.

    Args:
        path: the file (version 2 or 3, little-endian), or its header.
        dtype: of quantised tensors; float32 holds every value exactly as the format defines it. Others keep their own.

    Raises:
        CheckpointError: malformed, or of a tensor type that is not read; see GgufHeader.
    """
    header = path if isinstance(path, GgufHeader) else GgufHeader(Path(path))
    file = _GgufFile(header)
    tensors: dict[str, StoredTensor | Derived] = {}
    for name, place in header.tensors.items():
        if place.kind in _DTYPES:
            tensors[name] = _stored(file, name, _DTYPES[place.kind], place.shape)
        else:
            tensors[name] = _computed(file, name, place, _BLOCKS[place.kind], dtype)
    metadata = {key: str(value) for key, value in header.metadata.items() if not isinstance(value, Array)}
    return TensorSource(str(header.path), tensors, metadata=metadata)


def _stored(file: "_GgufFile", name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> StoredTensor:
    return StoredTensor(dtype, shape, (StoredPiece(file, name, Box.whole(shape)),))


def _computed(file: "_GgufFile", name: str, place: Place, block: BlockType, dtype: torch.dtype) -> Derived:
    """A tensor made of its blocks, which are rows of bytes."""
    *leading, width = place.shape
    stored = _stored(file, name, torch.uint8, (*leading, width // block.num_values * block.num_bytes))
    packed: Relation = whole(name, stored.shape, stored.dtype)
    sizes = (1,) * len(leading) + (block.num_values,)
    units = (*((dim, 1) for dim in range(len(leading))), (len(leading), Fraction(block.num_values, block.num_bytes)))
    compute = partial(_decode, block=block, dtype=dtype)
    made = Computed(f"{block.name}({name})", place.shape, dtype, (packed,), sizes, (units,), compute)
    return Derived(whole(made, made.shape, made.dtype), {name: stored})


def _decode(packed: Tensor, block: BlockType, dtype: torch.dtype) -> Tensor:
    values = block.decode(packed.reshape(-1, block.num_bytes))
    return values.view(*packed.shape[:-1], -1).to(dtype)


class _GgufFile:
    """The data of a GGUF file, which has no digests."""

    def __init__(self, header: GgufHeader) -> None:
        self.path = header.path
        self._header = header

    def tensor(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """A view of a tensor, or of a quantised tensor's bytes."""
        place = self._header.tensors[name]
        return self._header.mapped.bytes[place.start : place.stop].view(dtype).view(shape)

    def check(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """Raise CheckpointError unless the file is there; its header has been checked."""
        if not self.path.is_file():
            raise CheckpointError(f"{self.path}: no such file")

    def blocks_of(self, name: str, dtype: torch.dtype, shape: tuple[int, ...], box: Box) -> np.ndarray:
        """GGUF keeps no digests."""
        return np.empty(0, dtype=np.int64)

    def check_blocks(self, blocks: np.ndarray) -> None:
        """GGUF keeps no digests."""
