"""Sparse tensors from places and values, and what a tensor says of its layout."""

from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import DTypeLike, as_device, as_dtype, as_ints
from oarlock.paddle.sparse.entries import COO, CSR, check_sparse, is_sorted, values_of
from oarlock.paddle.tensors.conversion import to_tensor

AT = "paddle.sparse"


@api(at=AT, out=False, place="device", shape="size")
def sparse_coo_tensor(
    indices: Any,
    values: Any,
    shape: Any = None,
    dtype: DTypeLike | None = None,
    place: Any = None,
    stop_gradient: bool = True,
) -> Tensor:
    """A tensor in COO layout. It says `is_coalesced()` if its places are sorted and none comes twice.

    Args:
        indices: [sparse dimensions, E], integers.
        values: [E, ...dense dimensions].
        shape: the smallest that holds all places if it is not given.
    """
    where, made = to_tensor(indices, None, place).long(), _values(values, dtype, place)
    if where.ndim != 2 or made.ndim < 1 or where.shape[1] != made.shape[0]:
        raise ValueError(
            f"indices [dimensions, E] and values [E, ...] were expected, not {list(where.shape)}, {list(made.shape)}"
        )
    if shape is None:
        _check_entries(where.shape[1])
        full = [*(int(n) + 1 for n in where.max(1).values), *made.shape[1:]]
    else:
        full = as_ints(shape)
    if len(full) != len(where) + made.ndim - 1:
        raise ValueError(f"a shape of {len(where) + made.ndim - 1} dimensions was expected, not {full}")
    sizes = torch.tensor(full[: len(where)], device=where.device)[:, None]
    if ((where < 0) | (where >= sizes)).any():
        raise ValueError(f"there are indices outside the shape {full}")
    made = torch.sparse_coo_tensor(
        where, made, full, is_coalesced=is_sorted(where, full[: len(where)]), check_invariants=False
    )
    return made if stop_gradient or made.requires_grad else made.requires_grad_()


@api(at=AT, out=False, place="device", shape="size")
def sparse_csr_tensor(
    crows: Any,
    cols: Any,
    values: Any,
    shape: Any = None,
    dtype: DTypeLike | None = None,
    place: Any = None,
    stop_gradient: bool = True,
) -> Tensor:
    """A tensor in CSR layout: `crows[i]` to `crows[i + 1]` are the entries of row i.

    Args:
        crows: [M + 1], integers; [B·(M + 1)] for a batch.
        cols: [E], integers, in each row in order.
        values: [E].
        shape: [M, N] or [B, M, N], of which each matrix has as many entries.
    """
    starts, columns = to_tensor(crows, None, place), to_tensor(cols, None, place)
    made = _values(values, dtype, place)
    if shape is None:
        _check_entries(len(columns))
    full = [len(starts) - 1, int(columns.max()) + 1] if shape is None else as_ints(shape)
    if len(full) not in (2, 3):
        raise ValueError(f"a CSR tensor has 2 or 3 dimensions, not the shape {full}")
    if len(full) == 3:
        starts = starts.reshape(full[0], full[1] + 1)
        if (starts[:, -1] != starts[0, -1]).any():
            raise ValueError("on torch the matrices of a CSR batch have equally many entries; use the COO layout")
        columns, made = columns.reshape(full[0], -1), made.reshape(full[0], -1)
    made = torch.sparse_csr_tensor(starts, columns, made, full, check_invariants=True)
    return made if stop_gradient or made.requires_grad else made.requires_grad_()


def _check_entries(count: int) -> None:
    if not count:
        raise ValueError("a tensor without entries needs a shape")


def _values(values: Any, dtype: DTypeLike | None, place: Any) -> Tensor:
    if not isinstance(values, Tensor):
        return to_tensor(values, dtype, place)
    return values.to(dtype=as_dtype(dtype) or values.dtype, device=as_device(place) or values.device)


@api(at=AT, out=False)
def coalesce(x: Tensor) -> Tensor:
    """A COO tensor with its places sorted and the values at one place summed."""
    check_sparse(x, "coalesce")
    return x.coalesce()


@api(at=AT, out=False)
def is_same_shape(x: Tensor, y: Tensor) -> bool:
    """Whether two shapes are equal."""
    return x.shape == y.shape


@api(at="paddle.Tensor", out=False)
def indices(x: Tensor) -> Tensor:
    """The places [sparse dimensions, E] of a COO tensor, in the order in which they are stored."""
    if x.layout != COO:
        raise TypeError(f"indices() is for tensors in COO layout, not {x.layout}")
    return x._indices()


@api(at="paddle.Tensor", out=False)
def values(x: Tensor) -> Tensor:
    """The values of a sparse tensor, in the order in which they are stored."""
    check_sparse(x, "values")
    return values_of(x)


@api(at="paddle.Tensor", out=False)
def to_sparse_csr(x: Tensor) -> Tensor:
    """The tensor in CSR layout."""
    return x if x.layout == CSR else x.to_sparse_csr()
