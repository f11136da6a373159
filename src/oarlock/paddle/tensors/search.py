"""Sorting, searching and counting."""

from collections import namedtuple
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import DTypeLike, as_dtype, as_number
from oarlock.paddle.tensors.binary import alike

TopKRetType = namedtuple("TopKRetType", ["values", "indices"])
ValuesAndIndices = namedtuple("ValuesAndIndices", ["values", "indices"])


def _arg(function: Any, x: Tensor, axis: Any, keepdim: bool, dtype: DTypeLike) -> Tensor:
    axis = None if axis is None else int(as_number(axis))
    return function(x, axis, keepdim).to(as_dtype(dtype))


@api()
def argmax(x: Tensor, axis: Any = None, keepdim: bool = False, dtype: DTypeLike = "int64") -> Tensor:
    """Index of the first largest element along `axis`, of the flattened tensor for None."""
    return _arg(torch.argmax, x, axis, keepdim, dtype)


@api()
def argmin(x: Tensor, axis: Any = None, keepdim: bool = False, dtype: DTypeLike = "int64") -> Tensor:
    """Index of the first smallest element along `axis`, of the flattened tensor for None."""
    return _arg(torch.argmin, x, axis, keepdim, dtype)


@api()
def argsort(x: Tensor, axis: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The indices that sort `x` along `axis`."""
    return torch.argsort(x, dim=axis, descending=descending, stable=stable)


@api(x="", axis="", compat="input dim")
def sort(x: Tensor, axis: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """`x` sorted along `axis`, without indices."""
    return torch.sort(x, dim=axis, descending=descending, stable=stable).values


@api()
def msort(input: Tensor) -> Tensor:
    """`input` sorted along its first dimension."""
    return torch.msort(input)


@api()
def topk(x: Tensor, k: Any, axis: int | None = None, largest: bool = True, sorted: bool = True) -> Any:
    """The `k` largest (or smallest) values along `axis`, the last one by default, and their indices."""
    k = min(int(k), 1) if x.ndim == 0 else int(k)
    return TopKRetType(*torch.topk(x, k, -1 if axis is None else axis, largest, sorted))


@api()
def kthvalue(x: Tensor, k: int, axis: int | None = None, keepdim: bool = False) -> Any:
    """The k-th smallest value along `axis` and its index."""
    return ValuesAndIndices(*torch.kthvalue(x, int(k), -1 if axis is None else axis, keepdim))


@api()
def mode(x: Tensor, axis: int = -1, keepdim: bool = False) -> Any:
    """The most frequent value along `axis` (the smallest of equals) and its last index."""
    values, indices = torch.mode(x, axis, True)
    if x.ndim:
        matches = (x == values) | (x.isnan() & values.isnan())
        place = torch.arange(x.shape[axis], device=x.device).reshape(
            [-1 if d == axis % x.ndim else 1 for d in range(x.ndim)]
        )
        indices = torch.where(matches, place, -1).amax(axis, True)
    if x.ndim and not keepdim:
        values, indices = values.squeeze(axis), indices.squeeze(axis)
    return ValuesAndIndices(values, indices)


@api()
def nonzero(x: Tensor, as_tuple: bool = False) -> Any:
    """The indices of the elements that are not zero: [n, ndim], or one vector per dimension."""
    return torch.nonzero(x, as_tuple=as_tuple)


@api()
def argwhere(input: Tensor) -> Tensor:
    """The indices, [n, ndim], of the elements that are not zero."""
    return torch.argwhere(input)


@api(x="input", y="other")
def where(condition: Tensor, x: Any = None, y: Any = None) -> Any:
    """`x` where the condition holds, else `y`; with neither, the indices where it holds."""
    if (x is None) != (y is None):
        raise ValueError("where() takes both x and y, or neither")
    if x is None:
        return torch.nonzero(condition, as_tuple=True)
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        x, y = alike(x, y)
    return torch.where(condition.bool(), x, y)


@api(x="input elements", test_x="test_elements")
def isin(x: Any, test_x: Any, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Which elements of `x` are among those of `test_x`."""
    x, test_x = (v.byte() if isinstance(v, Tensor) and v.dtype == torch.bool else v for v in (x, test_x))
    return torch.isin(x, test_x, assume_unique=assume_unique, invert=invert)


@api(sorted_sequence="", values="input self")
def searchsorted(
    sorted_sequence: Tensor,
    values: Any,
    out_int32: bool = False,
    right: bool = False,
    *,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Where `values` would be inserted into the sorted last dimension."""
    return torch.searchsorted(sorted_sequence, values, out_int32=out_int32, right=right, side=side, sorter=sorter)


@api(sorted_sequence="boundaries")
def bucketize(x: Any, sorted_sequence: Tensor, out_int32: bool = False, right: bool = False) -> Tensor:
    """The index of the bucket, between the numbers of `sorted_sequence`, of every element."""
    return torch.bucketize(x, sorted_sequence, out_int32=out_int32, right=right)


@api(weights="")
def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often every integer occurs, or the sum of its weights."""
    return torch.bincount(x, weights, int(minlength))


def _range(input: Tensor, low: float, high: float) -> tuple[float, float]:
    if low == high == 0 and input.numel():
        low, high = float(input.min()), float(input.max())
    return (low - 0.5, high + 0.5) if low == high else (low, high)


@api(weight="")
def histogram(
    input: Tensor,
    bins: int = 100,
    min: float = 0.0,
    max: float = 0.0,
    weight: Tensor | None = None,
    density: bool = False,
) -> Tensor:
    """Counts in `bins` equal bins from `min` to `max` (equal: of the data); int64 without weights and density."""
    if float(min) > float(max):
        raise ValueError(f"histogram() got min {float(min)} above max {float(max)}")
    low, high = _range(input, *((0.0, 0.0) if min == max else (float(min), float(max))))
    values = input.flatten().to(torch.float64)
    inside = (values >= low) & (values <= high)
    index = ((values[inside] - low) * bins / (high - low)).long().clamp(max=bins - 1)
    weights = None if weight is None else weight.flatten()[inside]
    counts = torch.bincount(index, weights, bins)
    if density:
        total = counts.sum()
        return (counts / total / ((high - low) / bins)).to(torch.float32)
    return counts if weight is None else counts.to(torch.float32)


@api()
def histogram_bin_edges(input: Tensor, bins: int = 100, min: float = 0.0, max: float = 0.0) -> Tensor:
    """The `bins + 1` edges of the bins of `histogram`."""
    low, high = _range(input, float(min), float(max))
    return torch.linspace(low, high, bins + 1, device=input.device)


@api(weights="weight", ranges="range")
def histogramdd(
    x: Tensor, bins: Any = 10, ranges: Any = None, density: bool = False, weights: Tensor | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Counts of points in D dimensions and the edges along each."""
    dims = x.shape[-1]
    flat = x.reshape(-1, dims)
    weights = None if weights is None else weights.flatten()
    if isinstance(bins, (list, tuple)) and isinstance(bins[0], Tensor):
        hist, edges = torch.histogramdd(flat, list(bins), weight=weights, density=density)
    else:
        counts = [int(bins)] * dims if not isinstance(bins, (list, tuple)) else [int(b) for b in bins]
        hist, edges = torch.histogramdd(flat, counts, range=ranges, weight=weights, density=density)
    return hist, list(edges)


def _first_index(inverse: Tensor, count: int) -> Tensor:
    place = torch.arange(inverse.numel(), device=inverse.device)
    found = torch.full((count,), inverse.numel(), dtype=torch.int64, device=inverse.device)
    return found.scatter_reduce(0, inverse, place, "amin")


def _none_distinct(x: Tensor, further: int, dtype: DTypeLike) -> Any:
    """`x` of no elements, and as many empty vectors as were asked for."""
    empty = [torch.empty(0, dtype=as_dtype(dtype), device=x.device) for _ in range(further)]
    return (x.clone(), *empty) if empty else x.clone()


@api(axis="")
def unique(
    x: Tensor,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: Any = None,
    dtype: DTypeLike = "int64",
    sorted: bool = True,
) -> Any:
    """The distinct elements (or slices along `axis`), sorted; then first indices, inverse and counts, if asked."""
    axis = axis[0] if isinstance(axis, (list, tuple)) and axis else axis
    axis = None if isinstance(axis, (list, tuple)) else axis
    if not x.numel():
        return _none_distinct(x, return_index + return_inverse + return_counts, dtype)
    values, inverse, counts = torch.unique(x, sorted, True, True, axis)
    inverse = inverse.flatten()
    found = [values]
    if return_index:
        found.append(_first_index(inverse, counts.numel()).to(as_dtype(dtype)))
    if return_inverse:
        found.append(inverse.to(as_dtype(dtype)))
    if return_counts:
        found.append(counts.to(as_dtype(dtype)))
    return found[0] if len(found) == 1 else tuple(found)


@api()
def unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, axis: Any = None, dtype: DTypeLike = "int64"
) -> Any:
    """The elements without the repetitions next to each other; then inverse and counts, if asked."""
    axis = axis[0] if isinstance(axis, (list, tuple)) and axis else axis
    axis = None if isinstance(axis, (list, tuple)) else axis
    if not x.numel():
        return _none_distinct(x.flatten() if axis is None else x, return_inverse + return_counts, dtype)
    values, inverse, counts = torch.unique_consecutive(x, True, True, axis)
    found = [values]
    if return_inverse:
        found.append(inverse.flatten().to(as_dtype(dtype)))
    if return_counts:
        found.append(counts.to(as_dtype(dtype)))
    return found[0] if len(found) == 1 else tuple(found)
