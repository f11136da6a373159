"""Diagonals, triangles, grids and powers."""

from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import DTypeLike, as_dtype


@api(x="input data", offset="diagonal")
def diag(x: Tensor, offset: int = 0, padding_value: Any = 0) -> Tensor:
    """The matrix with diagonal `x` (elsewhere `padding_value`), or the diagonal of the matrix `x`."""
    x = torch.atleast_1d(x)
    if x.ndim != 1 or padding_value == 0:
        return torch.diag(x, offset)
    return torch.diag(x, offset) + torch.where(torch.diag(torch.ones_like(x), offset) == 0, padding_value, 0).to(
        x.dtype
    )


@api()
def diagflat(x: Tensor, offset: int = 0) -> Tensor:
    """The matrix whose diagonal is `x`, flattened."""
    return torch.diagflat(x, offset)


@api("paddle.nn.functional.diag_embed")
def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices whose diagonals are the last dimension of `input`."""
    return torch.diag_embed(input, offset, dim1, dim2)


@api(x="input")
def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle of the last two dimensions."""
    return torch.tril(x, diagonal)


@api(x="input")
def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle of the last two dimensions."""
    return torch.triu(x, diagonal)


@api()
def tril_indices(row: int, col: int | None = None, offset: int = 0, dtype: DTypeLike = "int64") -> Tensor:
    """Rows and columns, [2, n], of the entries of a lower triangle."""
    return torch.tril_indices(row, row if col is None else col, offset).to(as_dtype(dtype))


@api()
def triu_indices(row: int, col: int | None = None, offset: int = 0, dtype: DTypeLike = "int64") -> Tensor:
    """Rows and columns, [2, n], of the entries of an upper triangle."""
    return torch.triu_indices(row, row if col is None else col, offset).to(as_dtype(dtype))


@api()
def meshgrid(*args: Any, indexing: str = "ij") -> list[Tensor]:
    """One grid per one-dimensional tensor; the first varies along the first dimension."""
    tensors = list(args[0]) if len(args) == 1 and isinstance(args[0], (list, tuple)) else list(args)
    return list(torch.meshgrid(*tensors, indexing=indexing))


@api()
def vander(x: Tensor, n: int | None = None, increasing: bool = False) -> Tensor:
    """The Vandermonde matrix: powers of `x` as columns, falling unless `increasing`."""
    powers = torch.arange(x.shape[0] if n is None else n, device=x.device)
    return x.unsqueeze(-1) ** (powers if increasing else powers.flip(0)).to(x.dtype)
