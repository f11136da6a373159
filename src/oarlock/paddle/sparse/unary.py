"""Functions of each stored value. All of them leave 0 what it is, but for `pow` with the factor 0."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import DTypeLike, as_dtype
from oarlock.paddle.sparse.creation import AT
from oarlock.paddle.sparse.entries import COO, CSR, as_layout, check_sparse, on_values, values_of, with_values

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": torch.abs,
    "asin": torch.asin,
    "asinh": torch.asinh,
    "atan": torch.atan,
    "atanh": torch.atanh,
    "deg2rad": lambda values: values * (math.pi / 180),
    "expm1": torch.expm1,
    "isnan": torch.isnan,
    "log1p": torch.log1p,
    "neg": torch.neg,
    "rad2deg": lambda values: values * (180 / math.pi),
    "sin": torch.sin,
    "sinh": torch.sinh,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tan": torch.tan,
    "tanh": torch.tanh,
}


def _declare(name: str, function: Callable[[Tensor], Tensor]) -> None:
    def call(x: Tensor) -> Tensor:
        return on_values(x, function, name)

    call.__name__, call.__doc__ = name, f"`{name}` of each stored value, at the same places."
    api(at=AT, out=False)(call)


for _name, _function in FUNCTIONS.items():
    _declare(_name, _function)


@api(at=AT, out=False)
def pow(x: Tensor, factor: float) -> Tensor:
    """Each stored value to the power `factor`."""
    return on_values(x, lambda values: values**factor, "pow")


@api(at=AT, out=False)
def cast(x: Tensor, index_dtype: DTypeLike | None = None, value_dtype: DTypeLike | None = None) -> Tensor:
    """Other dtypes of indices and values. Torch keeps the indices of the COO layout in int64."""
    check_sparse(x, "cast")
    values = values_of(x).to(as_dtype(value_dtype) or x.dtype)
    if x.layout == CSR:
        kind = as_dtype(index_dtype) or x.crow_indices().dtype
        return torch.sparse_csr_tensor(
            x.crow_indices().to(kind), x.col_indices().to(kind), values, x.shape, check_invariants=False
        )
    return with_values(x, values)


@api(at=AT, out=False)
def pca_lowrank(x: Tensor, q: int | None = None, center: bool = True, niter: int = 2) -> Any:
    """`(U, S, V)` with `U·diag(S)·V'` near the matrix, from which the means of columns are taken if `center`.

    Args:
        x: [M, N].
        q: how many singular values, `min(6, M, N)` if it is not given.
        niter: steps of the subspace iteration.
    """
    check_sparse(x, "pca_lowrank")
    return torch.pca_lowrank(as_layout(x, COO), q, center, niter)
