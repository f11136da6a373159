"""Shapes: reshaping, joining, splitting, repeating, reordering."""

import builtins
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import DTypeLike, as_dtype, as_ints, as_number
from oarlock.paddle.tensors.conversion import convert


@api()
def cast(x: Tensor, dtype: DTypeLike) -> Tensor:
    """`x` in another dtype; a complex number leaves its imaginary part."""
    return convert(x, as_dtype(dtype) or x.dtype)


@api(variadic="shape")
def reshape(x: Tensor, shape: Any) -> Tensor:
    """`x` in another shape: -1 is what is left, 0 the size of `x` there."""
    return x.reshape(_with_copies(x, shape))


def _with_copies(x: Tensor, shape: Any) -> list[int]:
    sizes = as_ints(shape)
    if 0 not in sizes:
        return sizes
    if x.numel() == 0 and 0 in sizes and -1 in sizes:  # what is left is counted without the dimensions of size 0
        rest = math.prod(n for n in x.shape if n) // math.prod(n for n in sizes if n > 0)
        return [rest if size == -1 else size for size in sizes]
    return [x.shape[i] if size == 0 and x.numel() and i < x.ndim else size for i, size in enumerate(sizes)]


@api(variadic="shape_or_dtype", shape_or_dtype="shape size dtype")
def view(x: Tensor, shape_or_dtype: Any) -> Tensor:
    """`x` in another shape, or its bytes as another dtype."""
    if isinstance(shape_or_dtype, (str, torch.dtype)):
        return _bits(x, as_dtype(shape_or_dtype))  # type: ignore[arg-type]
    return x.view(_with_copies(x, shape_or_dtype))


def _bits(x: Tensor, dtype: torch.dtype) -> Tensor:
    if x.is_complex() and dtype == x.real.dtype:  # gradients flow between complex numbers and their parts
        return torch.view_as_real(x).flatten(-2)
    if dtype.is_complex and x.dtype == dtype.to_real():
        return torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return x.view(dtype)


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


@api(shape="size sizes")
def unflatten(x: Tensor, axis: Any, shape: Any) -> Tensor:
    """One dimension as several; one size may be -1."""
    return torch.unflatten(x, int(as_number(axis)), as_ints(shape))


def _ones(x: Tensor, axis: Any) -> list[int]:
    dims = as_ints(axis)
    return [d for d in {d % builtins.max(x.ndim, 1) for d in dims} if x.ndim and x.shape[d] == 1]


@api()
def squeeze(x: Tensor, axis: Any = None) -> Tensor:
    """`x` without the dimensions of size 1 (those in `axis`, where it is not empty)."""
    if axis is None or not as_ints(axis):
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


@api("swapaxes swapdims", perm="dims dim0 axis0", dim1="axis1")
def transpose(x: Tensor, perm: Any, dim1: Any = None) -> Tensor:
    """The dimensions in the order `perm`, or two of them swapped: `transpose(x, 0, 1)`."""
    if dim1 is None or isinstance(dim1, str):  # in Paddle's order a name comes third
        return permute(x, perm)
    return torch.transpose(x, int(as_number(perm)), int(as_number(dim1)))


@api(variadic="dims", dims="perm")
def permute(input: Tensor, dims: Any) -> Tensor:
    """The dimensions in the order `dims`, a list or several numbers; those that it leaves out stay at the end."""
    order = as_ints(dims)
    return input.permute([*order, *builtins.range(len(order), input.ndim)])


@api()
def t(input: Tensor) -> Tensor:
    """The transpose of a matrix; fewer dimensions stay."""
    return input.t()


@api("movedim")
def moveaxis(x: Tensor, source: Any, destination: Any) -> Tensor:
    """Dimensions moved to other places."""
    return torch.movedim(x, tuple(as_ints(source)), tuple(as_ints(destination)))


@api("broadcast_to", variadic="shape")
def expand(x: Tensor, shape: Any) -> Tensor:
    """`x` broadcast to `shape`; -1 keeps a size, an empty shape all of them."""
    return x.expand(as_ints(shape) or x.shape)


@api(y="other")
def expand_as(x: Tensor, y: Tensor) -> Tensor:
    """`x` broadcast to the shape of `y`."""
    return x.expand(y.shape)


@api(x="", input="inputs x tensors", out=False)
def broadcast_tensors(input: Any, *more: Tensor) -> list[Tensor]:
    """The tensors, in a list or one by one, broadcast to their common shape."""
    return list(torch.broadcast_tensors(*_listed(input, more)))


def _listed(first: Any, more: tuple[Tensor, ...]) -> Sequence[Tensor]:
    """Tensors that are given in a list, or as arguments of their own."""
    return (first, *more) if more else first


@api(variadic="repeat_times", repeat_times="dims repeats")
def tile(x: Tensor, repeat_times: Any) -> Tensor:
    """`x` repeated `repeat_times` along its dimensions, the last ones if there are fewer."""
    return torch.tile(x, tuple(as_ints(repeat_times)))


@api("paddle.Tensor.repeat", bare=True, variadic="repeats")
def repeat(input: Tensor, repeats: Any) -> Tensor:
    """`input` repeated along its dimensions, the last ones if there are fewer numbers."""
    return torch.tile(input, tuple(as_ints(repeats)))


@api()
def repeat_interleave(x: Tensor, repeats: Any, axis: int | None = None, *, output_size: int | None = None) -> Tensor:
    """Every element (slice along `axis`) repeated on the spot."""
    return torch.repeat_interleave(x, repeats, axis, output_size=output_size)


@api("reverse", axis="dims dim")
def flip(x: Tensor, axis: Any) -> Tensor:
    """`x` reversed along dimensions."""
    return torch.flip(x, sorted({d + x.ndim if d < 0 else d for d in as_ints(axis)}))


@api(axis="dims dim")
def roll(x: Tensor, shifts: Any, axis: Any = None) -> Tensor:
    """Elements moved around along dimensions (of the flattened tensor for None)."""
    return torch.roll(x, as_ints(shifts), () if axis is None else as_ints(axis))


@api(axes="dims")
def rot90(x: Tensor, k: int = 1, axes: Any = (0, 1)) -> Tensor:
    """`x` turned `k` times by 90 degrees in a plane."""
    return torch.rot90(x, k, as_ints(axes))


@api("paddle.linalg.diagonal")
def diagonal(x: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The diagonals of two dimensions, as the last one."""
    return torch.diagonal(x, offset, axis1, axis2)


@api(y="src other")
def diagonal_scatter(x: Tensor, y: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """`x` with `y` on a diagonal."""
    return torch.diagonal_scatter(x, y, offset, axis1, axis2)


@api()
def trace(x: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The sum of a diagonal."""
    return torch.diagonal(x, offset, axis1, axis2).sum(-1, dtype=None if x.dtype == torch.bool else x.dtype)


@api("as_complex")
def view_as_complex(input: Tensor) -> Tensor:
    """Pairs in the last dimension as complex numbers."""
    return torch.view_as_complex(input) if input.stride(-1) == 1 else torch.complex(input[..., 0], input[..., 1])


@api("as_real")
def view_as_real(input: Tensor) -> Tensor:
    """Complex numbers as pairs in a last dimension."""
    return torch.view_as_real(input)


@api()
def as_strided(x: Tensor, shape: Any, stride: Any, offset: int = 0, *, storage_offset: int | None = None) -> Tensor:
    """A view of the memory of `x` with given sizes, strides and `offset` in bytes (`storage_offset` in elements)."""
    start = offset // x.element_size() if storage_offset is None else storage_offset
    return torch.as_strided(x, as_ints(shape), as_ints(stride), start)


@api(axis="dimension dim")
def unfold(x: Tensor, axis: int, size: int, step: int) -> Tensor:
    """Windows of `size` every `step` along `axis`, as a last dimension."""
    return x.unfold(axis, size, step)


@api(x="tensors", out=False)
def cartesian_prod(x: Any, *more: Tensor) -> Tensor:
    """All tuples of one element of each vector; the vectors are in a list or arguments of their own."""
    return torch.cartesian_prod(*_listed(x, more))


@api()
def combinations(x: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All combinations of `r` elements."""
    return torch.combinations(x, r, with_replacement)


def _declare_atleast(ndim: int) -> None:
    function = getattr(torch, f"atleast_{ndim}d")

    def call(*inputs: Any) -> Any:
        if len(inputs) == 1 and isinstance(inputs[0], (list, tuple)) and builtins.any(map(torch.is_tensor, inputs[0])):
            inputs = tuple(inputs[0])
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
