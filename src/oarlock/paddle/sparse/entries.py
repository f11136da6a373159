"""What a sparse tensor stores, read and replaced so that gradients pass.

Names: E entries, each a place (its indices in the sparse dimensions) and a value (of the dense dimensions).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

COO, CSR = torch.sparse_coo, torch.sparse_csr


class _RawValues(torch.autograd.Function):
    """The values of a COO tensor that is not sorted; torch has no gradient of them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.places, ctx.shape = x._indices(), x.shape
        return x._values().clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        made = torch.sparse_coo_tensor(ctx.places, grads[0], ctx.shape, check_invariants=False)
        if made.coalesce()._nnz() < made._nnz():
            raise RuntimeError("this sparse tensor has several values at one place: coalesce() it before a gradient")
        return made


def check_sparse(x: Any, where: str) -> None:
    """Refuse what is no sparse tensor.

    Raises:
        TypeError: `x` is dense, or no tensor.
    """
    if not isinstance(x, Tensor) or x.layout not in (COO, CSR):
        kind = "dense tensor" if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"paddle.sparse.{where}() takes a tensor in COO or CSR layout, not a {kind}")


def values_of(x: Tensor) -> Tensor:
    """The values [E, ...] in the order in which they are stored."""
    return x.values() if x.layout == CSR or x.is_coalesced() else _RawValues.apply(x)  # type: ignore[return-value]


def places_of(x: Tensor) -> Tensor:
    """The places [sparse dimensions, E], for rows in the order of their values."""
    if x.layout == COO:
        return x._indices()
    crows, columns = x.crow_indices(), x.col_indices()
    size = x.shape[-2]
    rows = torch.repeat_interleave(
        torch.arange(size, device=x.device).expand(*crows.shape[:-1], size).reshape(-1), crows.diff().reshape(-1).long()
    )
    batch = columns.shape[:-1].numel()
    each = columns.shape[-1]
    found = [rows, columns.reshape(-1).long()]
    if columns.ndim > 1:
        found.insert(0, torch.arange(batch, device=x.device).repeat_interleave(each))
    return torch.stack(found)


def flat_values_of(x: Tensor) -> Tensor:
    """The values [E, ...], those of a batch of row-wise matrices one after the other."""
    found = values_of(x)
    return found.reshape(-1) if x.layout == CSR else found


def with_values(x: Tensor, values: Tensor) -> Tensor:
    """`x` with other values at the same places."""
    if x.layout == CSR:
        return torch.sparse_csr_tensor(
            x.crow_indices(), x.col_indices(), values.reshape(x.values().shape), x.shape, check_invariants=False
        )
    shape = (*x.shape[: x.sparse_dim()], *values.shape[1:])
    return torch.sparse_coo_tensor(x._indices(), values, shape, is_coalesced=x.is_coalesced(), check_invariants=False)


def on_values(x: Tensor, function: Callable[[Tensor], Tensor], where: str) -> Tensor:
    """`x` with `function(values)` at the same places."""
    check_sparse(x, where)
    return with_values(x, function(values_of(x)))


def numbers_of(places: Tensor, shape: Sequence[int]) -> Tensor:
    """One number for each place, that of the element in a dense tensor of `shape`."""
    made = torch.zeros_like(places[0])
    for index, size in zip(places, shape, strict=True):
        made = made * size + index
    return made


def from_numbers(numbers: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of `numbers_of`."""
    found = []
    for size in reversed(shape):
        found.append(numbers % size)
        numbers = numbers // size
    return torch.stack(found[::-1])


def collect(places: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    """A COO tensor whose places are sorted and whose values at one place are summed.

    Args:
        places: [sparse dimensions, E].
        values: [E, ...].
        shape: that of the sparse dimensions.
    """
    unique, inverse = torch.unique(numbers_of(places, shape), return_inverse=True)
    if len(unique) == len(inverse):
        values = values[torch.argsort(inverse)]
    else:
        values = values.new_zeros(len(unique), *values.shape[1:]).index_add(0, inverse, values)
    where = from_numbers(unique, shape)
    return torch.sparse_coo_tensor(
        where, values, (*shape, *values.shape[1:]), is_coalesced=True, check_invariants=False
    )


def arranged(places: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    """A COO tensor of places in any order, none of them twice."""
    full = (*shape, *values.shape[1:])
    return torch.sparse_coo_tensor(places, values, full, is_coalesced=is_sorted(places, shape), check_invariants=False)


def as_layout(x: Tensor, layout: torch.layout) -> Tensor:
    """`x` in COO or CSR layout."""
    if x.layout == layout:
        return x
    return x.to_sparse_csr() if layout == CSR else x.to_sparse()


def is_sorted(places: Tensor, shape: Sequence[int]) -> bool:
    """Whether the places are in order, none of them twice."""
    if places.shape[1] == 0 or math.prod(shape) == 0:
        return True
    return bool((numbers_of(places, shape).diff() > 0).all())
