"""Joining tensors, and cutting them apart."""

import builtins
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import as_ints, as_number


@api("concat concatenate", x="tensors")
def cat(x: Sequence[Tensor], axis: Any = 0) -> Tensor:
    """Tensors joined along `axis`."""
    return torch.cat(list(x), int(as_number(axis)))


@api(x="tensors")
def stack(x: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors joined along a new dimension."""
    return torch.stack(list(x), axis)


def _declare_stack(name: str, more: str) -> None:
    function = getattr(torch, name)

    def call(x: Sequence[Tensor]) -> Tensor:
        return function(list(x))

    call.__name__, call.__doc__ = name, f"Tensors joined as `torch.{name}` joins them."
    api(more, x="tensors")(call)


for _name, _more in (("hstack", ""), ("vstack", "row_stack"), ("dstack", ""), ("column_stack", "")):
    _declare_stack(_name, _more)


@api(out=False)
def block_diag(inputs: Any, *more: Tensor) -> Tensor:
    """Matrices along the diagonal of one; vectors are rows, numbers 1x1."""
    given = (inputs, *more) if more or (isinstance(inputs, Tensor) and inputs.ndim < 3) else inputs
    blocks = [torch.atleast_2d(block) for block in given]
    ends = list(itertools.accumulate(block.shape[1] for block in blocks))
    rows = [
        torch.nn.functional.pad(block, (end - block.shape[1], ends[-1] - end))
        for block, end in zip(blocks, ends, strict=True)
    ]
    return torch.cat(rows)


def _sections(size: int, sections: Any) -> list[int]:
    sizes = as_ints(sections)
    if -1 in sizes:
        rest = size - builtins.sum(s for s in sizes if s != -1)
        sizes = [rest if s == -1 else s for s in sizes]
    return sizes


@api(x="", axis="", compat="tensor split_size_or_sections dim")
def split(x: Tensor, num_or_sections: Any, axis: Any = 0) -> list[Tensor]:
    """`x` in a number of equal parts, or in parts of given sizes (one may be -1), along `axis`.

    torch's argument is the size of a part: `paddle.compat.split`.
    """
    axis = int(as_number(axis))
    size = x.shape[axis]
    if isinstance(num_or_sections, int):
        if num_or_sections <= 0 or size % num_or_sections:
            raise ValueError(f"split() cannot cut dimension {axis} of size {size} into {num_or_sections} equal parts")
        return list(torch.split(x, [size // num_or_sections] * num_or_sections, axis))
    return list(torch.split(x, _sections(size, num_or_sections), axis))


@api()
def chunk(x: Tensor, chunks: int, axis: Any = 0) -> list[Tensor]:
    """`x` in `chunks` equal parts along `axis`."""
    axis = int(as_number(axis))
    if x.shape[axis] % chunks == 0:
        return list(torch.split(x, [x.shape[axis] // chunks] * chunks, axis))
    return list(torch.chunk(x, chunks, axis))


@api(num_or_indices="indices_or_sections sections indices")
def tensor_split(x: Tensor, num_or_indices: Any, axis: Any = 0) -> list[Tensor]:
    """`x` in a number of nearly equal parts, or cut at given indices, along `axis`."""
    return _cut(x, num_or_indices, int(as_number(axis)))


def _cut(x: Tensor, at: Any, dim: int) -> list[Tensor]:
    return list(torch.tensor_split(x, at if isinstance(at, int) else as_ints(at), dim))


@api(num_or_indices="indices_or_sections sections indices")
def hsplit(x: Tensor, num_or_indices: Any) -> list[Tensor]:
    """`tensor_split` along the second dimension (the only one of a vector)."""
    return _cut(x, num_or_indices, 0 if x.ndim == 1 else 1)


@api(num_or_indices="indices_or_sections sections indices")
def vsplit(x: Tensor, num_or_indices: Any) -> list[Tensor]:
    """`tensor_split` along the first dimension."""
    return _cut(x, num_or_indices, 0)


@api(num_or_indices="indices_or_sections sections indices")
def dsplit(x: Tensor, num_or_indices: Any) -> list[Tensor]:
    """`tensor_split` along the third dimension."""
    return _cut(x, num_or_indices, 2)


@api()
def unbind(input: Tensor, axis: int = 0) -> list[Tensor]:
    """The slices along `axis`, without it."""
    return list(torch.unbind(input, axis))


@api()
def unstack(x: Tensor, axis: int = 0, num: int | None = None) -> list[Tensor]:
    """The slices along `axis`, without it; `num` of them."""
    parts = list(torch.unbind(x, axis))
    if num is not None and num != len(parts):
        raise ValueError(f"num={num}, but dimension {axis} has size {len(parts)}")
    return parts
