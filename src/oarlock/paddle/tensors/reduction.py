"""Sums, extremes, moments and cumulative functions. `axis` may be a number, several, or None for all."""

import builtins
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api, write
from oarlock.paddle.dtypes import DTypeLike, as_dims, as_dtype
from oarlock.paddle.tensors.binary import is_inexact
from oarlock.paddle.tensors.search import ValuesAndIndices


def all_dims(x: Tensor, axis: Any) -> tuple[int, ...]:
    """The dimensions that `axis` names, all of them for None."""
    dims = as_dims(axis)
    return tuple(builtins.range(x.ndim)) if dims is None else dims


def _sorted_dims(x: Tensor, axis: Any) -> list[int]:
    rank = builtins.max(x.ndim, 1)
    dims = all_dims(x, axis)
    if wrong := [dim for dim in dims if not -rank <= dim < rank]:
        raise IndexError(f"axis {wrong[0]} is out of the range [{-rank}, {rank}) of a tensor of shape {list(x.shape)}")
    if len({dim % rank for dim in dims}) < len(dims):
        raise ValueError(f"axis names a dimension twice: {list(dims)}")
    return sorted(dim % rank for dim in dims)


KEPT = (torch.int8, torch.int16, torch.uint8)  # dtypes whose sums stay in them


def _real(x: Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else torch.float64 if x.dtype == torch.complex128 else torch.float32


@api("paddle.reduce_sum")
def sum(x: Tensor, axis: Any = None, dtype: Any = None, keepdim: Any = False) -> Tensor:
    """Sum over `axis`; bool and int32 give int64. `dtype` and `keepdim` are told apart in either order."""
    if isinstance(dtype, bool):
        dtype, keepdim = keepdim if not isinstance(keepdim, bool) else None, dtype
    kept = x.dtype if x.dtype in KEPT else None
    return torch.sum(x, all_dims(x, axis), keepdim, dtype=as_dtype(dtype) or kept)


@api()
def nansum(x: Tensor, axis: Any = None, dtype: DTypeLike | None = None, keepdim: bool = False) -> Tensor:
    """Sum over `axis`, NaN counting as 0."""
    x = torch.where(x.isnan(), 0, x)
    return torch.sum(x, all_dims(x, axis), keepdim, dtype=as_dtype(dtype))


@api()
def mean(x: Tensor, axis: Any = None, keepdim: bool = False, *, dtype: DTypeLike | None = None) -> Tensor:
    """Mean over `axis`. Integers give an integer mean, where torch refuses them."""
    wanted = as_dtype(dtype)
    if wanted is not None:
        x = x.to(wanted)
    if x.is_floating_point() or x.is_complex():
        return torch.mean(x, all_dims(x, axis), keepdim)
    dims = all_dims(x, axis)
    count = 1
    for dim in dims:
        count *= x.shape[dim] if x.ndim else 1
    return torch.div(torch.sum(x, dims, keepdim), count, rounding_mode="trunc").to(x.dtype)


@api()
def nanmean(x: Tensor, axis: Any = None, keepdim: bool = False) -> Tensor:
    """Mean over `axis` of what is not NaN; of integers in the default dtype."""
    dims, missing = all_dims(x, axis), x.isnan()
    return torch.sum(torch.where(missing, 0, x), dims, keepdim) / torch.sum(~missing, dims, keepdim).to(_real(x))


@api()
def prod(
    x: Tensor, axis: Any = None, keepdim: bool = False, dtype: DTypeLike | None = None, out: Tensor | None = None
) -> Tensor:
    """Product over `axis`; int32 stays int32."""
    dtype = as_dtype(dtype) or (torch.int32 if x.dtype == torch.int32 else None)
    if axis is None and not keepdim:
        made = torch.prod(x, dtype=dtype)
    else:
        made = x if dtype is None else x.to(dtype)
        for dim in reversed(_sorted_dims(x, axis)):
            made = torch.prod(made, dim, keepdim, dtype=dtype)
    return made if out is None else write(made, out)


def _extreme(x: Tensor, axis: Any, keepdim: bool, function: Callable[..., Tensor]) -> Tensor:
    return function(x, all_dims(x, axis), keepdim)


@api(x="", axis="", keepdim="", compat="input dim other")
def max(x: Tensor, axis: Any = None, keepdim: bool = False) -> Tensor:
    """Largest values over `axis`, without indices; the gradient is shared among ties."""
    return _extreme(x, axis, keepdim, torch.amax)


@api(x="", axis="", keepdim="", compat="input dim other")
def min(x: Tensor, axis: Any = None, keepdim: bool = False) -> Tensor:
    """Smallest values over `axis`, without indices; the gradient is shared among ties."""
    return _extreme(x, axis, keepdim, torch.amin)


@api()
def amax(x: Tensor, axis: Any = None, keepdim: bool = False) -> Tensor:
    """Largest values over `axis`; the gradient is shared among ties."""
    return _extreme(x, axis, keepdim, torch.amax)


@api()
def amin(x: Tensor, axis: Any = None, keepdim: bool = False) -> Tensor:
    """Smallest values over `axis`; the gradient is shared among ties."""
    return _extreme(x, axis, keepdim, torch.amin)


@api()
def all(x: Tensor, axis: Any = None, keepdim: bool = False) -> Tensor:
    """Whether every element over `axis` is true."""
    return torch.all(x.bool(), all_dims(x, axis), keepdim)


@api()
def any(x: Tensor, axis: Any = None, keepdim: bool = False) -> Tensor:
    """Whether some element over `axis` is true."""
    return torch.any(x.bool(), all_dims(x, axis), keepdim)


@api()
def count_nonzero(x: Tensor, axis: Any = None, keepdim: bool = False) -> Tensor:
    """How many elements over `axis` are not zero."""
    dims = _sorted_dims(x, axis)
    found = torch.count_nonzero(x, dims) if x.ndim else (x != 0).long()
    return found.reshape([1 if d in dims else size for d, size in enumerate(x.shape)]) if keepdim else found


@api("paddle.special.logsumexp")
def logsumexp(x: Tensor, axis: Any = None, keepdim: bool = False) -> Tensor:
    """`log(sum(exp(x)))` over `axis`."""
    return torch.logsumexp(x, all_dims(x, axis), keepdim)


def _correction(unbiased: bool | None, correction: float) -> float:
    return correction if unbiased is None else float(unbiased)


@api()
def var(
    x: Tensor, axis: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float = 1
) -> Tensor:
    """Variance over `axis`, divided by n - correction (`unbiased`: n - 1 or n). Integers count as the default dtype."""
    x = x if is_inexact(x) else x.to(torch.get_default_dtype())
    return torch.var(x, all_dims(x, axis), correction=_correction(unbiased, correction), keepdim=keepdim)


@api()
def std(
    x: Tensor, axis: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float = 1
) -> Tensor:
    """Standard deviation over `axis`, from `var`."""
    x = x if is_inexact(x) else x.to(torch.get_default_dtype())
    return torch.std(x, all_dims(x, axis), correction=_correction(unbiased, correction), keepdim=keepdim)


def _last(x: Tensor, axis: Any) -> tuple[Tensor, list[int]]:
    """The dimensions of `axis` moved to the end as one, and the shape with ones in their place."""
    dims = _sorted_dims(x, axis)
    kept = [1 if d in dims else size for d, size in enumerate(x.shape)]
    if x.ndim == 0:
        return x.reshape(1), []
    order = [d for d in builtins.range(x.ndim) if d not in dims] + dims
    return x.permute(order).flatten(x.ndim - len(dims)), kept


def _shaped(rows: Tensor, kept: list[int], keepdim: bool) -> Tensor:
    return rows.reshape(kept) if keepdim else rows


@api(axis="")
def median(x: Tensor, axis: Any = None, keepdim: bool = False, mode: str = "avg", *, dim: Any = None) -> Any:
    """Median over `axis`: the mean of the two middle values, or with mode "min" the lower one and its index.

    The spelling `dim` means torch's median: mode "min".
    """
    if dim is not None:
        axis, mode = dim, "min"
    _check_mode(mode)
    rows, kept = _last(x, axis)
    if not rows.shape[-1]:
        return _nothing(x, rows, kept, keepdim, mode == "min" and axis is not None)
    if mode == "min":
        values, indices = torch.median(rows, -1)
        found = _shaped(values, kept, keepdim)
        return found if axis is None else (found, _shaped(indices, kept, keepdim))
    rows = rows if rows.dtype == torch.float64 else rows.to(torch.float32)
    n = rows.shape[-1]
    ordered = torch.sort(rows, -1).values
    middle = ordered[..., n // 2] if n % 2 else (ordered[..., n // 2 - 1] + ordered[..., n // 2]) / 2
    middle = torch.where(torch.isnan(rows).any(-1), torch.nan, middle)
    return _shaped(middle, kept, keepdim)


@api(axis="")
def nanmedian(x: Tensor, axis: Any = None, keepdim: bool = False, mode: str = "avg", *, dim: Any = None) -> Any:
    """Median over `axis` of what is not NaN, as `median`; of integers an integer. A list of axes gives no indices."""
    if dim is not None:
        axis, mode = dim, "min"
    _check_mode(mode)
    rows, kept = _last(x, axis)
    indexed = mode == "min" and axis is not None and not isinstance(axis, (list, tuple))
    if not rows.shape[-1]:
        return _nothing(x, rows, kept, keepdim, indexed)
    count = (~torch.isnan(rows)).sum(-1, keepdim=True)
    ordered, order = torch.sort(rows, -1)
    lower = ((count - 1) // 2).clamp(min=0)
    values = ordered.gather(-1, lower)
    if mode == "avg":
        both = values + ordered.gather(-1, (count // 2).clamp(max=rows.shape[-1] - 1))
        half = both / 2 if x.is_floating_point() else torch.div(both, 2, rounding_mode="trunc")
        return _shaped(torch.where(count % 2 == 1, values, half).squeeze(-1), kept, keepdim)
    found = _shaped(values.squeeze(-1), kept, keepdim)
    if not indexed:
        return found
    return found, _shaped(torch.where(count == 0, -1, order.gather(-1, lower)).squeeze(-1), kept, keepdim)


def _nothing(x: Tensor, rows: Tensor, kept: list[int], keepdim: bool, indexed: bool) -> Any:
    """The medians of no elements: NaN, at index 0."""
    found = _shaped(rows.sum(-1).to(x.dtype if x.dtype == torch.float64 else torch.float32) + torch.nan, kept, keepdim)
    return (found, torch.zeros_like(found, dtype=torch.int64)) if indexed else found


def _check_mode(mode: str) -> None:
    if mode not in ("avg", "min"):
        raise ValueError(f"mode must be 'avg' or 'min', not {mode!r}")


def _quantile(
    function: Callable[..., Tensor], x: Tensor, q: Any, axis: Any, keepdim: bool, interpolation: str
) -> Tensor:
    rows, kept = _last(x if x.is_floating_point() else x.to(torch.float32), axis)
    q = q[0] if isinstance(q, (list, tuple)) and len(q) == 1 else q
    points = torch.as_tensor(q, dtype=rows.dtype, device=rows.device)
    found = function(rows, points, -1, interpolation=interpolation)
    return found.reshape([*points.shape, *kept]) if keepdim else found


@api()
def quantile(x: Tensor, q: Any, axis: Any = None, keepdim: bool = False, interpolation: str = "linear") -> Tensor:
    """The values below which the fractions `q` lie; two or more `q` come first in the shape."""
    return _quantile(torch.quantile, x, q, axis, keepdim, interpolation)


@api()
def nanquantile(x: Tensor, q: Any, axis: Any = None, keepdim: bool = False, interpolation: str = "linear") -> Tensor:
    """As `quantile`, without the NaN."""
    return _quantile(torch.nanquantile, x, q, axis, keepdim, interpolation)


def _line(x: Tensor, axis: Any) -> tuple[Tensor, int]:
    return (x.flatten(), 0) if axis is None else (x, int(axis))


@api()
def cumsum(x: Tensor, axis: int | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """Running sum along `axis`, of the flattened tensor for None."""
    x, dim = _line(x, axis)
    return torch.cumsum(x, dim, dtype=as_dtype(dtype))


@api()
def cumprod(x: Tensor, dim: int | None = None, *args: Any, dtype: DTypeLike | None = None) -> Tensor:
    """Running product along `dim`, of the flattened tensor for None."""
    x, dim = _line(x, dim)
    kept = torch.int32 if x.dtype == torch.int32 else None
    return torch.cumprod(x, dim, dtype=as_dtype(args[0] if args else dtype) or kept)


@api()
def cummax(x: Tensor, axis: int | None = None, dtype: DTypeLike = "int64") -> Any:
    """Running maximum along `axis` and its indices, of `dtype`."""
    x, dim = _line(x, axis)
    values, indices = torch.cummax(x, dim)
    return ValuesAndIndices(values, indices.to(as_dtype(dtype)))


@api()
def cummin(x: Tensor, axis: int | None = None, dtype: DTypeLike = "int64") -> Any:
    """Running minimum along `axis` and its indices, of `dtype`."""
    x, dim = _line(x, axis)
    values, indices = torch.cummin(x, dim)
    return ValuesAndIndices(values, indices.to(as_dtype(dtype)))


@api()
def logcumsumexp(x: Tensor, axis: int | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """Running `log(sum(exp(x)))` along `axis`."""
    x, dim = _line(x if dtype is None else x.to(as_dtype(dtype)), axis)
    return torch.logcumsumexp(x if is_inexact(x) else x.to(torch.get_default_dtype()), dim)


@api()
def reduce_as(x: Tensor, target: Tensor) -> Tensor:
    """Sum `x` down to the shape of `target`, which broadcasts to it."""
    if x.shape == target.shape:
        return x.clone()
    made = x.sum_to_size(target.shape)
    return made.to(x.dtype) if x.dtype in KEPT else made


@api()
def numel(x: Tensor) -> Tensor:
    """The number of elements, as a 0-D int64 tensor."""
    return torch.tensor(x.numel())
