"""Activations of stored values, and the softmax over the stored values of a row."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.sparse.entries import (
    check_sparse,
    flat_values_of,
    numbers_of,
    on_values,
    places_of,
    values_of,
    with_values,
)

AT = "paddle.sparse.nn.functional"


@api(at=AT, out=False)
def relu(x: Tensor) -> Tensor:
    """`max(x, 0)` of each stored value."""
    return on_values(x, F.relu, "nn.functional.relu")


@api(at=AT, out=False)
def relu6(x: Tensor) -> Tensor:
    """`min(max(x, 0), 6)` of each stored value."""
    return on_values(x, F.relu6, "nn.functional.relu6")


@api(at=AT, out=False)
def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """`x`, times `negative_slope` below 0, of each stored value."""
    return on_values(x, lambda values: F.leaky_relu(values, negative_slope), "nn.functional.leaky_relu")


@api(at=AT, out=False)
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """`exp(x) / sum exp(x)` over the stored values along `axis`; what is not stored has no weight.

    Raises:
        ValueError: a CSR tensor along another dimension than its last.
    """
    check_sparse(x, "nn.functional.softmax")
    places, dim = places_of(x), axis % x.ndim
    if dim >= len(places):
        return with_values(x, values_of(x).softmax(dim - len(places) + 1))
    if x.layout == torch.sparse_csr and dim != x.ndim - 1:
        raise ValueError(f"a CSR tensor has a softmax along its last dimension, not along {axis}")
    others = [n for n in range(len(places)) if n != dim]
    sizes = [x.shape[n] for n in others] or [1]
    rows = numbers_of(places[others], sizes) if others else torch.zeros_like(places[0])
    return with_values(x, softmax_of_rows(flat_values_of(x), rows, torch.Size(sizes).numel()))


def softmax_of_rows(values: Tensor, rows: Tensor, count: int) -> Tensor:
    """The softmax of values [E, ...] among those of the same row; minus infinity has no weight."""
    index: Any = rows.reshape(-1, *[1] * (values.ndim - 1)).expand_as(values)
    top = torch.full((count, *values.shape[1:]), -torch.inf, dtype=values.dtype, device=values.device)
    top = top.scatter_reduce(0, index, values.detach(), "amax").clamp(min=torch.finfo(values.dtype).min)
    weights = (values - top[rows]).exp()
    sums = torch.zeros_like(top).index_add(0, rows, weights)
    return weights / torch.where(sums == 0, torch.ones_like(sums), sums)[rows]
