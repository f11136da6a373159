"""Dimensions of sparse tensors: exchanged, merged and split, cut, summed."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import DTypeLike, as_dims, as_dtype, as_ints
from oarlock.paddle.sparse.creation import AT
from oarlock.paddle.sparse.entries import (
    COO,
    arranged,
    as_layout,
    check_sparse,
    collect,
    flat_values_of,
    from_numbers,
    numbers_of,
    places_of,
)


@api(at=AT, out=False, perm="dims")
def transpose(x: Tensor, perm: Sequence[int]) -> Tensor:
    """The dimensions in another order; dense dimensions stay behind the sparse ones."""
    check_sparse(x, "transpose")
    places, values = places_of(x), flat_values_of(x)
    count, order = len(places), [int(n) % x.ndim for n in perm]
    first, rest = order[:count], order[count:]
    if sorted(order) != list(range(x.ndim)) or any(n >= count for n in first):
        raise ValueError(f"perm {order} of {count} sparse dimension(s) and {x.ndim - count} dense one(s)")
    values = values.permute(0, *(n - count + 1 for n in rest))
    sizes = [x.shape[n] for n in first]
    if x.layout == COO:
        return arranged(places[first], values, sizes)
    return as_layout(collect(places[first], values, sizes), x.layout)


@api(at=AT, out=False)
def reshape(x: Tensor, shape: Any) -> Tensor:
    """The same elements in another shape; 0 keeps a size, -1 is what remains. Dense dimensions stay as they are."""
    check_sparse(x, "reshape")
    places, values = places_of(x), flat_values_of(x)
    asked = [x.shape[i] if n == 0 else n for i, n in enumerate(as_ints(shape))]
    if -1 in asked:
        known = -torch.Size(asked).numel()
        asked[asked.index(-1)] = x.shape.numel() // known
    dense = len(x.shape) - len(places)
    split = len(asked) - dense
    if torch.Size(asked).numel() != x.shape.numel() or asked[split:] != list(x.shape[len(places) :]):
        raise ValueError(f"{list(x.shape)} with {dense} dense dimension(s) cannot be reshaped to {asked}")
    numbers = numbers_of(places, x.shape[: len(places)])
    return as_layout(collect(from_numbers(numbers, asked[:split]), values, asked[:split]), x.layout)


@api(at=AT, out=False, axes="")
def slice(x: Tensor, axes: Any, starts: Any, ends: Any) -> Tensor:
    """From `starts` up to `ends` along `axes`; negative ones count from the end, ends beyond it are cut."""
    check_sparse(x, "slice")
    places, values, sizes = places_of(x), flat_values_of(x), list(x.shape)
    for axis, start, end in zip(as_ints(axes), as_ints(starts), as_ints(ends), strict=True):
        axis %= x.ndim
        begin, stop = (min(max(n + x.shape[axis] if n < 0 else n, 0), x.shape[axis]) for n in (start, end))
        sizes[axis] = max(stop - begin, 0)
        if axis >= len(places):
            values = values.narrow(axis - len(places) + 1, begin, sizes[axis])
            continue
        inside = (places[axis] >= begin) & (places[axis] < stop)
        places, values = places[:, inside].clone(), values[inside]
        places[axis] -= begin
    return as_layout(collect(places, values, sizes[: len(places)]), x.layout)


@api(at=AT, out=False)
def sum(x: Tensor, axis: Any = None, dtype: DTypeLike | None = None, keepdim: bool = False) -> Tensor:
    """The sum over some dimensions, or over all of them, in the same layout.

    A COO tensor keeps one sparse dimension, of size 1, where all of them are summed. A CSR tensor is summed over its
    last dimension or over all, and keeps its dimensions.
    """
    check_sparse(x, "sum")
    kind = as_dtype(dtype) or (torch.int64 if x.dtype == torch.bool else x.dtype)
    places, values = places_of(x), flat_values_of(x).to(kind)
    rows = x.layout == torch.sparse_csr
    dims = as_dims(axis)
    gone = {n % x.ndim for n in range(x.ndim)} if dims is None else {n % x.ndim for n in dims}
    if rows and dims is not None and gone != {x.ndim - 1}:
        raise ValueError(f"a CSR tensor is summed over its last dimension, not over {axis}")
    keepdim, count = keepdim or rows, len(places)
    values = _sum_dense(values, [n - count + 1 for n in gone if n >= count], keepdim)
    zero = torch.zeros_like(places[0])
    sizes = [1 if n in gone else x.shape[n] for n in range(count) if keepdim or n not in gone]
    kept = [zero if n in gone else places[n] for n in range(count) if keepdim or n not in gone]
    if not kept:
        sizes, kept = [1], [zero]
    return as_layout(collect(torch.stack(kept), values, sizes), x.layout)


def _sum_dense(values: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    return values.sum(dims, keepdim=keepdim) if dims else values
