"""Shapes: reshaping, joining, splitting, repeating, reordering."""

import builtins
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import DTypeLike, as_dtype, as_ints, as_number


@api()
def cast(x: Tensor, dtype: DTypeLike) -> Tensor:
    """`x` in another dtype."""
    return x.to(as_dtype(dtype))


@api(variadic="shape")
def reshape(x: Tensor, shape: Any) -> Tensor:
    """`x` in another shape: -1 is what is left, 0 the size of `x` there."""
    return x.reshape(_with_copies(x, shape))


def _with_copies(x: Tensor, shape: Any) -> list[int]:
    sizes = as_ints(shape)
    return [x.shape[i] if size == 0 and x.numel() and i < x.ndim else size for i, size in enumerate(sizes)]


@api(variadic="shape_or_dtype", shape_or_dtype="shape size dtype")
def view(x: Tensor, shape_or_dtype: Any) -> Tensor:
    """`x` in another shape, or its bytes as another dtype."""
    if isinstance(shape_or_dtype, (str, torch.dtype)):
        return x.view(as_dtype(shape_or_dtype))  # type: ignore[call-overload]
    return x.view(_with_copies(x, shape_or_dtype))


@api()
def view_as(x: Tensor, other: Tensor) -> Tensor:
    """`x` in the shape of `other`."""
    return x.view(other.shape)


@api()
def ravel(input: Tensor) -> Tensor:
    """`input` as one dimension."""
    return torch.ravel(input)


@api()
def flatten(x: Tensor, start_axis: int = 0, stop_axis: int = -1) -> Tensor:
    """The dimensions from `start_axis` to `stop_axis` as one."""
    return torch.flatten(x, start_axis, stop_axis)


@api()
def unflatten(x: Tensor, axis: Any, shape: Any) -> Tensor:
    """One dimension as several; one size may be -1."""
    return torch.unflatten(x, int(as_number(axis)), as_ints(shape))


def _ones(x: Tensor, axis: Any) -> list[int]:
    dims = as_ints(axis)
    return [d for d in {d % builtins.max(x.ndim, 1) for d in dims} if x.ndim and x.shape[d] == 1]


@api()
def squeeze(x: Tensor, axis: Any = None) -> Tensor:
    """`x` without the dimensions of size 1 (those in `axis`)."""
    if axis is None:
        return torch.squeeze(x)
    _check_dims(x, axis)
    return torch.squeeze(x, _ones(x, axis)) if _ones(x, axis) else x.view_as(x)


def _check_dims(x: Tensor, axis: Any) -> None:
    limit = builtins.max(x.ndim, 1)
    for d in as_ints(axis):
        if not -limit <= d < limit:
            raise IndexError(f"dimension {d} is out of range for a tensor of {x.ndim} dimensions")


@api()
def unsqueeze(x: Tensor, axis: Any) -> Tensor:
    """`x` with dimensions of size 1 put in, one after the other."""
    for dim in as_ints(axis):
        x = torch.unsqueeze(x, dim)
    return x


@api(variadic="perm", perm="dims")
def transpose(x: Tensor, perm: Any = None, *, dim0: int | None = None, dim1: int | None = None) -> Tensor:
    """The dimensions in the order `perm`; or two of them swapped: `transpose(x, 0, 1)`."""
    if perm is None:
        return torch.transpose(x, _given(dim0, "dim0"), _given(dim1, "dim1"))
    if dim1 is not None:
        return torch.transpose(x, as_ints(perm)[0], dim1)
    order = as_ints(perm)
    if x.ndim != len(order) or sorted(d % builtins.max(x.ndim, 1) for d in order) != list(builtins.range(x.ndim)):
        if len(order) != 2:
            raise ValueError(f"perm {order} does not order the {x.ndim} dimensions of x")
        return torch.transpose(x, *order)
    return x.permute(order)


def _given(value: int | None, name: str) -> int:
    if value is None:
        raise TypeError(f"transpose() needs perm, or dim0 and dim1; {name} is missing")
    return value


@api(variadic="dims", dims="perm")
def permute(input: Tensor, dims: Any) -> Tensor:
    """The dimensions in the order `dims`, a list or several numbers."""
    return input.permute(as_ints(dims))


@api("swapdims", axis0="dim0 axis0", axis1="dim1")
def swapaxes(x: Tensor, axis0: int, axis1: int) -> Tensor:
    """Two dimensions swapped."""
    return torch.transpose(x, axis0, axis1)


@api()
def t(input: Tensor) -> Tensor:
    """The transpose of a matrix; fewer dimensions stay."""
    return input.t()


@api("movedim")
def moveaxis(x: Tensor, source: Any, destination: Any) -> Tensor:
    """Dimensions moved to other places."""
    return torch.movedim(x, tuple(as_ints(source)), tuple(as_ints(destination)))


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


@api()
def block_diag(inputs: Sequence[Tensor]) -> Tensor:
    """Matrices along the diagonal of one."""
    return torch.block_diag(*inputs)


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


@api("broadcast_to", variadic="shape")
def expand(x: Tensor, shape: Any) -> Tensor:
    """`x` broadcast to `shape`; -1 keeps a size."""
    return x.expand(as_ints(shape))


@api(y="other")
def expand_as(x: Tensor, y: Tensor) -> Tensor:
    """`x` broadcast to the shape of `y`."""
    return x.expand(y.shape)


@api(x="", input="inputs x tensors")
def broadcast_tensors(input: Sequence[Tensor]) -> list[Tensor]:
    """The tensors broadcast to their common shape."""
    return list(torch.broadcast_tensors(*input))


@api(variadic="repeat_times", repeat_times="dims repeats")
def tile(x: Tensor, repeat_times: Any) -> Tensor:
    """`x` repeated `repeat_times` along its dimensions, the last ones if there are fewer."""
    return torch.tile(x, tuple(as_ints(repeat_times)))


@api("paddle.Tensor.repeat", bare=True, variadic="repeats")
def repeat(input: Tensor, repeats: Any) -> Tensor:
    """`input` repeated along its dimensions."""
    return input.repeat(as_ints(repeats))


@api()
def repeat_interleave(x: Tensor, repeats: Any, axis: int | None = None, *, output_size: int | None = None) -> Tensor:
    """Every element (slice along `axis`) repeated on the spot."""
    return torch.repeat_interleave(x, repeats, axis, output_size=output_size)


@api(axis="dims dim")
def flip(x: Tensor, axis: Any) -> Tensor:
    """`x` reversed along dimensions."""
    return torch.flip(x, as_ints(axis))


@api()
def reverse(x: Tensor, axis: Any) -> Tensor:
    """`x` reversed along dimensions."""
    return torch.flip(x, as_ints(axis))


@api(axis="dims dim")
def roll(x: Tensor, shifts: Any, axis: Any = None) -> Tensor:
    """Elements moved around along dimensions (of the flattened tensor for None)."""
    return torch.roll(x, as_ints(shifts), () if axis is None else as_ints(axis))


@api(axes="dims")
def rot90(x: Tensor, k: int = 1, axes: Any = (0, 1)) -> Tensor:
    """`x` turned `k` times by 90 degrees in a plane."""
    return torch.rot90(x, k, as_ints(axes))


@api()
def diagonal(x: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The diagonals of two dimensions, as the last one."""
    return torch.diagonal(x, offset, axis1, axis2)


@api("paddle.linalg.diagonal", bare=True)
def linalg_diagonal(x: Tensor, offset: int = 0, axis1: int = -2, axis2: int = -1) -> Tensor:
    """The diagonals of the last two dimensions."""
    return torch.diagonal(x, offset, axis1, axis2)


@api(y="src other")
def diagonal_scatter(x: Tensor, y: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """`x` with `y` on a diagonal."""
    return torch.diagonal_scatter(x, y, offset, axis1, axis2)


@api()
def trace(x: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The sum of a diagonal."""
    return torch.diagonal(x, offset, axis1, axis2).sum(-1)


@api("as_complex")
def view_as_complex(input: Tensor) -> Tensor:
    """Pairs in the last dimension as complex numbers."""
    return torch.view_as_complex(input)


@api("as_real")
def view_as_real(input: Tensor) -> Tensor:
    """Complex numbers as pairs in a last dimension."""
    return torch.view_as_real(input)


@api(offset="storage_offset")
def as_strided(x: Tensor, shape: Any, stride: Any, offset: int = 0) -> Tensor:
    """A view of the memory of `x` with given sizes, strides and offset."""
    return torch.as_strided(x, as_ints(shape), as_ints(stride), offset)


@api(axis="dimension dim")
def unfold(x: Tensor, axis: int, size: int, step: int) -> Tensor:
    """Windows of `size` every `step` along `axis`, as a last dimension."""
    return x.unfold(axis, size, step)


@api(x="tensors")
def cartesian_prod(x: Sequence[Tensor]) -> Tensor:
    """All tuples of one element of each vector."""
    return torch.cartesian_prod(*x)


@api()
def combinations(x: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All combinations of `r` elements."""
    return torch.combinations(x, r, with_replacement)


def _declare_atleast(ndim: int) -> None:
    function = getattr(torch, f"atleast_{ndim}d")

    def call(*inputs: Any) -> Any:
        tensors = [torch.as_tensor(v) for v in inputs]
        return function(tensors[0]) if len(tensors) == 1 else list(function(tensors))

    call.__name__, call.__doc__ = f"atleast_{ndim}d", f"The tensors with at least {ndim} dimension(s)."
    api()(call)


for _ndim in (1, 2, 3):
    _declare_atleast(_ndim)


@api()
def crop(x: Tensor, shape: Any = None, offsets: Any = None) -> Tensor:
    """The block of `shape` (-1: up to the end) that starts at `offsets`."""
    starts = [0] * x.ndim if offsets is None else as_ints(offsets)
    sizes = list(x.shape) if shape is None else as_ints(shape)
    ends = [
        x.shape[d] if size == -1 else start + size for d, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]
    return x[tuple(builtins.slice(a, b) for a, b in zip(starts, ends, strict=True))]


@api()
def shard_index(input: Tensor, index_num: int, nshards: int, shard_id: int, ignore_value: int = -1) -> Tensor:
    """Indices counted from the start of a shard; those of other shards become `ignore_value`."""
    size = (index_num + nshards - 1) // nshards
    return torch.where(input // size == shard_id, input % size, ignore_value)
