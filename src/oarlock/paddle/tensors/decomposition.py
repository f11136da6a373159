"""Decompositions, inverses, solvers of linear equations, covariances."""

from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api

AT = "paddle.linalg"


@api("paddle.linalg.cholesky")
def cholesky(x: Tensor, upper: bool = False) -> Tensor:
    """`L` with `L·Lᵀ = x`, or its transpose."""
    return torch.linalg.cholesky(x, upper=upper)


@api("paddle.Tensor.cholesky_solve", at=AT)
def cholesky_solve(x: Tensor, y: Tensor, upper: bool = False) -> Tensor:
    """Solve `A·z = x` where `y` is the Cholesky factor of A."""
    return torch.cholesky_solve(x, y, upper)


@api("paddle.Tensor.cholesky_inverse", at=AT)
def cholesky_inverse(x: Tensor, upper: bool = False) -> Tensor:
    """The inverse of `x·xᵀ` (`upper`: of `xᵀ·x`); the other triangle of `x` counts, where torch takes it for 0."""
    return torch.linalg.inv(x.mT @ x if upper else x @ x.mT)


@api("paddle.linalg.inv")
def inverse(x: Tensor) -> Tensor:
    """The inverse of square matrices."""
    return torch.linalg.inv(x)


@api("paddle.Tensor.det", at=AT)
def det(x: Tensor) -> Tensor:
    """The determinant."""
    return torch.linalg.det(x)


@api("paddle.Tensor.slogdet", at=AT)
def slogdet(x: Tensor) -> Tensor:
    """Sign and logarithm of the absolute determinant, stacked: [2, ...]."""
    return torch.stack(tuple(torch.linalg.slogdet(x)))


@api("paddle.Tensor.eig", at=AT)
def eig(x: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and right eigenvectors, complex."""
    values, vectors = torch.linalg.eig(x)
    return values, vectors


@api("paddle.Tensor.eigvals", at=AT)
def eigvals(x: Tensor) -> Tensor:
    """Eigenvalues, complex."""
    return torch.linalg.eigvals(x)


@api("paddle.Tensor.eigh", at=AT)
def eigh(x: Tensor, UPLO: str = "L") -> tuple[Tensor, Tensor]:
    """Eigenvalues, rising, and eigenvectors of Hermitian matrices."""
    values, vectors = torch.linalg.eigh(x, UPLO)
    return values, vectors


@api("paddle.linalg.eigvalsh")
def eigvalsh(x: Tensor, UPLO: str = "L") -> Tensor:
    """Eigenvalues, rising, of Hermitian matrices."""
    return torch.linalg.eigvalsh(x, UPLO)


@api("paddle.Tensor.qr", at=AT)
def qr(x: Tensor, mode: str = "reduced") -> Any:
    """`Q, R` with `x = Q·R`; mode "r" gives R alone."""
    q, r = torch.linalg.qr(x, mode)
    return r if mode == "r" else (q, r)


@api(at=AT)
def svd(x: Tensor, full_matrices: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """`U, S, Vᴴ` with `x = U·diag(S)·Vᴴ`."""
    u, s, vh = torch.linalg.svd(x, full_matrices)
    return u, s, vh


@api("paddle.Tensor.svdvals", at=AT)
def svdvals(x: Tensor) -> Tensor:
    """Singular values, falling."""
    return torch.linalg.svdvals(x)


@api("paddle.Tensor.svd_lowrank", at=AT)
def svd_lowrank(
    x: Tensor, q: int | None = None, niter: int = 2, M: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """An approximate singular value decomposition of rank `q` (6): U, S, V."""
    return torch.svd_lowrank(x, min(6, *x.shape[-2:]) if q is None else q, niter, M)


@api("paddle.Tensor.pca_lowrank", at=AT)
def pca_lowrank(x: Tensor, q: int | None = None, center: bool = True, niter: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """The leading `q` (6) principal components: U, S, V."""
    return torch.pca_lowrank(x, q, center, niter)


@api("paddle.Tensor.solve", at=AT, x="input A", y="other B")
def solve(x: Tensor, y: Tensor, left: bool = True) -> Tensor:
    """Solve `x·z = y`, or `z·x = y` if not `left`."""
    if not left and y.ndim > 1:
        y = y.expand(*torch.broadcast_shapes(x.shape[:-2], y.shape[:-2]), *y.shape[-2:])  # torch may see vectors in it
    return torch.linalg.solve(x, y, left=left)


@api("paddle.Tensor.triangular_solve", at=AT)
def triangular_solve(
    x: Tensor, y: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Tensor:
    """Solve `x·z = y` for triangular `x`, transposed if asked."""
    if transpose:
        x, upper = x.mT, not upper
    return torch.linalg.solve_triangular(x, y, upper=upper, unitriangular=unitriangular)


@api("paddle.Tensor.lstsq", at=AT)
def lstsq(x: Tensor, y: Tensor, rcond: float | None = None, driver: str | None = None) -> tuple[Tensor, ...]:
    """Least squares: solution, residuals, rank (int32), singular values."""
    solution, residuals, rank, values = torch.linalg.lstsq(x, y, rcond, driver=driver)
    return solution, residuals, rank.to(torch.int32), values


@api("paddle.Tensor.lu", at=AT)
def lu(x: Tensor, pivot: bool = True, get_infos: bool = False) -> tuple[Tensor, ...]:
    """The packed LU decomposition and its pivots, counted from 1; then the infos, if asked."""
    packed, pivots, infos = torch.linalg.lu_factor_ex(x, pivot=pivot)
    return (packed, pivots, infos) if get_infos else (packed, pivots)


@api("paddle.Tensor.lu_unpack", at=AT)
def lu_unpack(
    x: Tensor, y: Tensor, unpack_ludata: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """P, L and U from what `lu` returns."""
    p, l, u = torch.lu_unpack(x, y, unpack_ludata, unpack_pivots)  # noqa: E741 - the names of the factors
    return p, l, u


@api("paddle.Tensor.lu_solve", at=AT)
def lu_solve(b: Tensor, lu: Tensor, pivots: Tensor, trans: str = "N") -> Tensor:
    """Solve `A·z = b` from the packed LU decomposition of A ("T": of its transpose)."""
    if trans == "N":
        return torch.linalg.lu_solve(lu, pivots, b)
    return (
        torch.linalg.lu_solve(lu, pivots, b, adjoint=True)
        if not lu.is_complex() or trans in "HC"
        else torch.linalg.lu_solve(lu.conj(), pivots, b, adjoint=True)
    )


@api("paddle.Tensor.matrix_power", at=AT)
def matrix_power(x: Tensor, n: int) -> Tensor:
    """The n-th power of square matrices."""
    return torch.linalg.matrix_power(x, n)


@api(at=AT)
def matrix_exp(x: Tensor) -> Tensor:
    """The matrix exponential."""
    return torch.linalg.matrix_exp(x)


@api(at=AT)
def matrix_rank(x: Tensor, tol: Any = None, hermitian: bool = False, atol: Any = None, rtol: Any = None) -> Tensor:
    """The number of singular values above a tolerance (`tol` is absolute)."""
    if tol is not None:
        if atol is not None or rtol is not None:
            raise ValueError("matrix_rank() takes tol alone, or atol and rtol")
        atol, rtol = tol, 0.0
    if isinstance(atol, Tensor) or isinstance(rtol, Tensor):
        atol, rtol = (t if t is None else torch.as_tensor(t, dtype=x.real.dtype, device=x.device) for t in (atol, rtol))
    return torch.linalg.matrix_rank(x, atol=atol, rtol=rtol, hermitian=hermitian)


@api("paddle.linalg.matrix_transpose")
def matrix_transpose(x: Tensor) -> Tensor:
    """The last two dimensions swapped."""
    return x.mT


@api("paddle.Tensor.pinv", at=AT)
def pinv(x: Tensor, rcond: Any = 1e-15, hermitian: bool = False) -> Tensor:
    """The pseudo-inverse; singular values below `rcond` (but at least what rounding leaves) of the largest are 0."""
    least = max(x.shape[-2:]) * torch.finfo(x.dtype).eps
    return torch.linalg.pinv(
        x, rtol=torch.as_tensor(rcond, dtype=x.real.dtype, device=x.device).clamp(min=least), hermitian=hermitian
    )


@api("paddle.Tensor.cond", at=AT)
def cond(x: Tensor, p: Any = None) -> Tensor:
    """The condition number by the norm `p` (2); infinite for singular matrices."""
    if p in (None, 2, -2):
        return torch.linalg.cond(x, p)
    inverse, info = torch.linalg.inv_ex(x)
    number = torch.linalg.matrix_norm(x, p) * torch.linalg.matrix_norm(inverse, p)
    return torch.where(info == 0, number, torch.inf)


@api("paddle.Tensor.cov", at=AT)
def cov(
    x: Tensor, rowvar: bool = True, ddof: bool = True, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """The covariances of the rows, or of the columns if not `rowvar`; a single row stays one."""
    rows = x if rowvar or x.ndim < 2 or x.shape[0] == 1 else x.mT
    return torch.cov(rows, correction=int(ddof), fweights=fweights, aweights=aweights).to(x.dtype)


@api("paddle.Tensor.corrcoef", at=AT)
def corrcoef(x: Tensor, rowvar: bool = True) -> Tensor:
    """The correlations of the rows, or of the columns if not `rowvar`."""
    return torch.corrcoef(x if rowvar or x.ndim < 2 or x.shape[0] == 1 else x.mT)


@api("paddle.Tensor.householder_product", at=AT)
def householder_product(x: Tensor, tau: Tensor) -> Tensor:
    """The orthogonal matrix of Householder reflectors."""
    return torch.linalg.householder_product(x, tau)


@api("paddle.Tensor.ormqr", at=AT)
def ormqr(x: Tensor, tau: Tensor, y: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """`Q·y` or `y·Q` for the Q of Householder reflectors."""
    return torch.ormqr(x, tau, y, left, transpose)
