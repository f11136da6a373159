"""Parts of tensors by index: gathering, scattering, slicing. Both orders of arguments are told apart."""

import builtins
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api, write
from oarlock.paddle.dtypes import as_ints, as_number
from oarlock.paddle.tensors.creation import number_of

REDUCTIONS = {
    "add": "sum",
    "sum": "sum",
    "mul": "prod",
    "multiply": "prod",
    "prod": "prod",
    "mean": "mean",
    "amin": "amin",
    "amax": "amax",
}


def _is_dim(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@api()
def gather(x: Tensor, index: Any, axis: Any = None, *, out: Tensor | None = None) -> Tensor:
    """The slices `index` along `axis` (0). With `(x, dim, index)`, torch's elementwise gather."""
    if _is_dim(index):
        made = torch.gather(x, index, axis)
    elif isinstance(index, Tensor) and index.ndim > 1 and axis is not None and index.shape[-1] != 1:
        made = torch.gather(x, int(as_number(axis)), index)
    else:
        if index.ndim > 1 and index.shape[-1] != 1:
            raise ValueError(
                f"gather() takes a vector of indices along axis 0, not shape {list(index.shape)}; see gather_nd()"
            )
        dim = 0 if axis is None else int(as_number(axis))
        chosen = index.long()
        made = (
            x.select(dim, int(chosen))
            if chosen.ndim == 0
            else torch.index_select(x, dim, _wrapped(chosen.flatten(), x.shape[dim]))
        )
    return made if out is None else write(made, out)


def _wrapped(index: Tensor, size: int) -> Tensor:
    return torch.where(index < 0, index + size, index)


@api()
def gather_nd(x: Tensor, index: Tensor) -> Tensor:
    """`x[index[..., 0], index[..., 1], ...]`."""
    index = index.long()
    return x[tuple(index.unbind(-1))] if index.shape[-1] else x.expand(*index.shape[:-1], *x.shape)


@api()
def index_select(x: Tensor, index: Any, axis: Any = 0) -> Tensor:
    """The slices `index` along `axis`; `(x, dim, index)` too."""
    if _is_dim(index):
        index, axis = axis, index
    return torch.index_select(x, axis, _wrapped(index.long().flatten(), x.shape[axis]))


@api()
def index_sample(x: Tensor, index: Tensor) -> Tensor:
    """`out[i, j] = x[i, index[i, j]]`."""
    return torch.gather(x, 1, index.long())


@api(value="source")
def index_add(x: Tensor, index: Any, axis: Any, value: Tensor, alpha: Any = 1) -> Tensor:
    """`x` with `alpha·value` added to the slices `index` along `axis`; `(x, dim, index, source)` too."""
    if _is_dim(index):
        index, axis = axis, index
    return torch.index_add(x, axis, _wrapped(index.flatten(), x.shape[axis]), value, alpha=as_number(alpha))


@api()
def index_fill(x: Tensor, index: Any, axis: Any, value: Any) -> Tensor:
    """`x` with the slices `index` along `axis` filled with a number."""
    if _is_dim(index):
        index, axis = axis, index
    if x.numel() == 0:
        return x.clone()
    rows = _wrapped(index.long(), x.shape[axis])
    return torch.index_fill(x, axis, rows, value.squeeze() if isinstance(value, Tensor) else value)


@api(value="values")
def index_put(x: Tensor, indices: Sequence[Tensor], value: Any, accumulate: bool = False) -> Tensor:
    """`x` with `x[indices] = value`, or `+=`."""
    value = value if isinstance(value, Tensor) else torch.tensor(value)
    return torch.index_put(x, tuple(indices), value.to(x.dtype), accumulate)


@api(updates="src value")
def scatter(
    x: Tensor, index: Any, updates: Any, overwrite: Any = True, *, dim: int | None = None, reduce: str | None = None
) -> Tensor:
    """`x` with the rows `index` set to (or summed from, if not `overwrite`) the rows of `updates`.

    `(x, dim, index, src)` is torch's elementwise scatter, with a `reduce` of "add" or "multiply" too.
    """
    if _is_dim(index):
        dim, index, updates = index, updates, overwrite
    if dim is not None:
        return put_along_axis(x, index, updates, dim, reduce or "assign", broadcast=False)
    rows = _wrapped(index.flatten().long(), x.shape[0])
    updates = updates.to(x.dtype)
    if overwrite:
        return torch.index_copy(x, 0, rows, updates.reshape(rows.shape[0], *x.shape[1:]))
    return torch.index_fill(x, 0, rows, 0).index_add(0, rows, updates.reshape(rows.shape[0], *x.shape[1:]))


def _sum_rows(x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    index = index.long()
    if index.shape[-1] == 0:
        return x + updates.reshape(-1, *x.shape).sum(0) if updates.ndim > x.ndim else x + updates
    return torch.index_put(x, tuple(index.unbind(-1)), updates, accumulate=True)


@api()
def scatter_nd_add(x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    """`x` with `updates` added at `index`."""
    return _sum_rows(x, index, updates)


@api()
def scatter_nd(index: Tensor, updates: Tensor, shape: Any) -> Tensor:
    """Zeros of `shape` with `updates` added at `index`."""
    return _sum_rows(torch.zeros(as_ints(shape), dtype=updates.dtype, device=updates.device), index, updates)


@api()
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """`input` with `src` added at `index` along `dim`."""
    return torch.scatter_add(input, dim, index.long(), _corner(src, index))


@api()
def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """`input` reduced with `src` at `index` along `dim`: sum, prod, mean, amin, amax."""
    parts = _corner(src, index)
    return torch.scatter_reduce(input, dim, index.long(), parts, REDUCTIONS[reduce], include_self=include_self)


def _corner(src: Tensor, index: Tensor) -> Tensor:
    """What `index` uses of `src`; a gradient needs the same shape."""
    return src[tuple(builtins.slice(size) for size in index.shape)]


@api("take_along_dim", arr="input x", indices="index")
def take_along_axis(arr: Tensor, indices: Tensor, axis: int, broadcast: bool = True) -> Tensor:
    """The elements `indices` along `axis`; the other dimensions broadcast."""
    indices = indices.long()
    indices = torch.where(indices < 0, indices + arr.shape[axis], indices)
    return torch.take_along_dim(arr, indices, axis) if broadcast else torch.gather(arr, axis, indices)


def _last_writers(arr: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Which of the values written to one place stays: of equal indices, only one has a gradient."""
    order = torch.arange(indices.numel(), device=arr.device).view(indices.shape)
    written = torch.zeros(arr.shape, dtype=torch.int64, device=arr.device).scatter(axis, indices, order)
    return written.gather(axis, indices) == order


@api(arr="input x", indices="index", values="value src")
def put_along_axis(
    arr: Tensor,
    indices: Tensor,
    values: Any,
    axis: int,
    reduce: str = "assign",
    include_self: bool = True,
    broadcast: bool = True,
) -> Tensor:
    """`arr` with `values` put, or reduced (add, mul, mean, amin, amax), at `indices` along `axis`."""
    indices = _wrapped(indices.long(), arr.shape[axis])
    values = values if isinstance(values, Tensor) else torch.tensor(values, device=arr.device)
    values = values.to(arr.dtype)
    if broadcast:
        shape = list(arr.shape)
        shape[axis] = indices.shape[axis]
        indices = indices.expand(
            torch.broadcast_shapes(indices.shape, [n if d != axis % arr.ndim else 1 for d, n in enumerate(shape)])
        )
        values = values.expand(indices.shape)
    else:
        values = values.expand(indices.shape) if values.ndim == 0 else _corner(values, indices)
    if values.shape != indices.shape:
        raise ValueError(f"put_along_axis() has indices of shape {list(indices.shape)}, values of {list(values.shape)}")
    if reduce == "assign":
        if values.requires_grad:
            values = torch.where(_last_writers(arr, indices, axis), values, values.detach())
        return torch.scatter(arr, axis, indices, values)
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce must be 'assign' or one of {', '.join(REDUCTIONS)}, not {reduce!r}")
    return torch.scatter_reduce(arr, axis, indices, values, REDUCTIONS[reduce], include_self=include_self)


@api()
def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """The elements where `mask` holds, as a vector."""
    return torch.masked_select(x, mask.bool())


@api()
def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """`x` with `value` where `mask` holds."""
    if isinstance(value, Tensor):
        return torch.where(mask.bool(), value.to(x.dtype).reshape([]) if value.numel() == 1 else value.to(x.dtype), x)
    return torch.masked_fill(x, mask.bool(), number_of(value, x.dtype))


@api(value="source")
def masked_scatter(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    """`x` with the elements of `value`, in order, where `mask` holds."""
    return torch.masked_scatter(x, mask.bool(), value)


@api()
def take(x: Tensor, index: Tensor, mode: str = "raise") -> Tensor:
    """Elements of the flattened `x`; indices outside raise, "wrap" or "clip"."""
    size, index = x.numel(), index.long()
    if mode == "wrap":
        index = index % size
    elif mode == "clip":
        index = index.clamp(0, size - 1)
    elif mode != "raise":
        raise ValueError(f"mode must be 'raise', 'wrap' or 'clip', not {mode!r}")
    return torch.take(x, index)


def _block(x: Tensor, axes: Any, starts: Any, ends: Any, strides: Any = None) -> tuple[builtins.slice, ...]:
    block = [builtins.slice(None)] * x.ndim
    steps = [1] * len(as_ints(axes)) if strides is None else _numbers(strides)
    for dim, start, end, step in zip(as_ints(axes), _numbers(starts), _numbers(ends), steps, strict=True):
        block[dim] = builtins.slice(start, end, step)
    return tuple(block)


def _numbers(values: Any) -> list[int]:
    return as_ints(values)


@api(input="x", axes="")
def slice(input: Tensor, axes: Any, starts: Any, ends: Any) -> Tensor:
    """`input[starts[i]:ends[i]]` along each of `axes`."""
    return input[_block(input, axes, starts, ends)]


@api(axes="")
def strided_slice(x: Tensor, axes: Any, starts: Any, ends: Any, strides: Any) -> Tensor:
    """`x[starts[i]:ends[i]:strides[i]]` along each of `axes`; strides may be negative."""
    for dim, part in zip(
        as_ints(axes), zip(_numbers(starts), _numbers(ends), _numbers(strides), strict=True), strict=True
    ):
        size, (start, end, step) = x.shape[dim], part
        if step > 0:
            chosen = range(*builtins.slice(start, end, step).indices(size))
        else:  # -1 as the end means before the first element only when it is below -size
            chosen = range(*builtins.slice(start, None if end < -size else end, step).indices(size))
        x = torch.index_select(x, dim, torch.tensor(list(chosen), dtype=torch.int64, device=x.device))
    return x


@api(axes="")
def slice_scatter(x: Tensor, value: Tensor, axes: Any, starts: Any, ends: Any, strides: Any) -> Tensor:
    """`x` with the block of `strided_slice` replaced by `value`."""
    made = x.clone()
    made[_block(x, axes, starts, ends, strides)] = value
    return made


@api(values="src")
def select_scatter(x: Tensor, values: Tensor, axis: int, index: int) -> Tensor:
    """`x` with the slice `index` along `axis` replaced."""
    row = torch.tensor([index % x.shape[axis]], device=x.device)  # torch's own has no gradient of complex numbers
    return torch.index_copy(x, axis, row, values.to(x.dtype).unsqueeze(axis))


@api()
def narrow(input: Tensor, dim: int, start: Any, length: int) -> Tensor:
    """`length` slices from `start` along `dim`."""
    return torch.narrow(input, dim, int(as_number(start)), int(length))
