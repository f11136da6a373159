"""Products of sparse matrices."""

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.sparse.binary import add
from oarlock.paddle.sparse.creation import AT
from oarlock.paddle.sparse.entries import (
    COO,
    CSR,
    as_layout,
    check_sparse,
    flat_values_of,
    on_values,
    places_of,
    with_values,
)


@api(at=AT, out=False)
def matmul(x: Tensor, y: Tensor) -> Tensor:
    """`x @ y` of a sparse `x`: dense if `y` is dense, sparse if both are of one layout.

    Args:
        x: [M, K], or a batch [..., M, K] by a dense `y`.
        y: [K, N], or [..., K, N].
    """
    check_sparse(x, "matmul")
    if y.layout == torch.strided:
        return x @ y if x.ndim == 2 and y.ndim == 2 else _batched(x, y)
    if x.layout != y.layout or x.ndim != 2:
        raise ValueError("the product of two sparse tensors is that of two matrices in one layout")
    return torch.sparse.mm(x, y) if x.layout == COO else (as_layout(x, COO) @ as_layout(y, COO)).to_sparse_csr()


def _batched(x: Tensor, y: Tensor) -> Tensor:
    """A row of the result is the sum over the row's entries: `value·y[column]`."""
    *batch, row, column = places_of(x)
    if y.ndim != x.ndim or y.shape[:-2] != x.shape[:-2] or y.shape[-2] != x.shape[-1]:
        raise ValueError(f"x {list(x.shape)} and y {list(y.shape)} do not fit a product of matrices")
    made = y.new_zeros(*x.shape[:-1], y.shape[-1])
    return made.index_put((*batch, row), flat_values_of(x)[:, None] * y[(*batch, column)], accumulate=True)


@api(at=AT, out=False)
def mv(x: Tensor, vec: Tensor) -> Tensor:
    """`x @ vec`, [M], of a sparse matrix [M, N] and a dense vector [N]."""
    check_sparse(x, "mv")
    if x.ndim != 2 or vec.shape != x.shape[1:]:
        raise ValueError(f"a matrix [M, N] and a vector [N] were expected, not {list(x.shape)} and {list(vec.shape)}")
    return (x @ vec[:, None])[:, 0]


@api(at=AT, out=False)
def masked_matmul(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """`x @ y` of dense tensors at the places of `mask`, in its layout.

    Args:
        x: [..., M, K].
        y: [..., K, N].
        mask: [..., M, N], sparse in all dimensions; its values do not matter.
    """
    check_sparse(mask, "masked_matmul")
    *batch, row, column = places_of(mask)
    if mask.shape != (*x.shape[:-1], y.shape[-1]) or x.shape[:-2] != y.shape[:-2] or x.shape[-1] != y.shape[-2]:
        raise ValueError(f"x {list(x.shape)}, y {list(y.shape)} and mask {list(mask.shape)} do not fit together")
    return with_values(mask, (x[(*batch, row)] * y.transpose(-1, -2)[(*batch, column)]).sum(-1))


@api(at=AT, out=False, x="", y="")
def addmm(input: Tensor, x: Tensor, y: Tensor, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """`beta·input + alpha·(x @ y)`; `input` is dense where the product is, else sparse in its layout."""
    product = matmul(x, y)
    if product.layout == torch.strided:
        return beta * input + alpha * product
    first = on_values(input, lambda values: beta * values, "addmm")
    return add(first, on_values(as_layout(product, CSR if x.layout == CSR else COO), lambda v: alpha * v, "addmm"))
