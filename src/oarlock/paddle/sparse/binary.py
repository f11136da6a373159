"""Functions of two sparse tensors of one shape and layout, and values of a dense tensor at given places."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.sparse.creation import AT
from oarlock.paddle.sparse.entries import (
    COO,
    as_layout,
    check_sparse,
    flat_values_of,
    from_numbers,
    numbers_of,
    on_values,
    places_of,
    with_values,
)


@api(at=AT, out=False)
def add(x: Tensor, y: Tensor) -> Tensor:
    """`x + y` at the places of both."""
    return _on_union(x, y, torch.add, "add")


@api(at=AT, out=False)
def subtract(x: Tensor, y: Tensor) -> Tensor:
    """`x - y` at the places of both."""
    return _on_union(x, y, torch.sub, "subtract")


@api(at=AT, out=False)
def multiply(x: Tensor, y: Any) -> Tensor:
    """`x·y` at the places of both, 0 where one of them has nothing; or by a number."""
    if isinstance(y, (int, float)):
        return on_values(x, lambda values: values * y, "multiply")
    return _on_union(x, y, torch.mul, "multiply")


@api(at=AT, out=False)
def divide(x: Tensor, y: Any) -> Tensor:
    """`x / y` at all places, NaN where neither has a value; or by a number, at the places of `x`."""
    if isinstance(y, (int, float)):
        return on_values(x, lambda values: values / y, "divide")
    _check_pair(x, y, "divide")
    made, dims = x.to_dense() / y.to_dense(), len(places_of(x))
    sizes = x.shape[:dims]
    everywhere = from_numbers(torch.arange(sizes.numel(), device=x.device), sizes)
    full = torch.sparse_coo_tensor(
        everywhere, made.reshape(-1, *x.shape[dims:]), x.shape, is_coalesced=True, check_invariants=False
    )
    return as_layout(full, x.layout)


@api(at=AT, out=False)
def mask_as(x: Tensor, mask: Tensor) -> Tensor:
    """The values of a dense tensor at the places of a sparse one, in its layout."""
    check_sparse(mask, "mask_as")
    if x.shape != mask.shape:
        raise ValueError(f"x {list(x.shape)} and mask {list(mask.shape)} must have one shape")
    return with_values(mask, x[tuple(places_of(mask))])


def _check_pair(x: Any, y: Any, where: str) -> None:
    check_sparse(x, where)
    check_sparse(y, where)
    if x.layout != y.layout or x.shape != y.shape or x.sparse_dim() != y.sparse_dim():
        both = f"{x.layout} {list(x.shape)} and {y.layout} {list(y.shape)}"
        raise ValueError(f"paddle.sparse.{where}() takes two tensors of one shape and layout, not {both}")


def _on_union(x: Tensor, y: Tensor, function: Callable[[Tensor, Tensor], Tensor], where: str) -> Tensor:
    """`function` of the values of both at each place of one of them; 0 stands for none."""
    _check_pair(x, y, where)
    places, other = places_of(x), places_of(y)
    sizes = x.shape[: len(places)]
    numbers = torch.cat([numbers_of(places, sizes), numbers_of(other, sizes)])
    unique, inverse = torch.unique(numbers, return_inverse=True)
    split = places.shape[1]
    first, second = (
        _spread(flat_values_of(x), inverse[:split], unique),
        _spread(flat_values_of(y), inverse[split:], unique),
    )
    made = torch.sparse_coo_tensor(
        from_numbers(unique, sizes), function(first, second), x.shape, is_coalesced=True, check_invariants=False
    )
    return as_layout(made, x.layout) if x.layout != COO else made


def _spread(values: Tensor, at: Tensor, among: Tensor) -> Tensor:
    return values.new_zeros(len(among), *values.shape[1:]).index_add(0, at, values)
