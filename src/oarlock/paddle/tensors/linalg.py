"""Products, decompositions and norms."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api, write
from oarlock.paddle.dtypes import DTypeLike, as_dims, as_dtype, as_number

AT = "paddle.linalg"


@api("paddle.linalg.matmul")
def matmul(x: Tensor, y: Tensor, transpose_x: bool = False, transpose_y: bool = False) -> Tensor:
    """The matrix product, batched and broadcast, with the last two dimensions of either swapped first if asked."""
    if transpose_x and x.ndim > 1:
        x = x.mT
    if transpose_y and y.ndim > 1:
        y = y.mT
    return torch.matmul(x, y)


@api(mat2="y")
def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """The matrix product."""
    return torch.matmul(input, mat2)


@api(y="other mat2")
def bmm(x: Tensor, y: Tensor) -> Tensor:
    """The products of two batches of matrices."""
    return torch.bmm(x, y)


@api()
def mv(x: Tensor, vec: Tensor) -> Tensor:
    """Matrix times vector."""
    return torch.mv(x, vec)


@api(y="other tensor")
def dot(x: Tensor, y: Tensor) -> Tensor:
    """The inner products of vectors, or of the rows of two matrices (torch: vectors only)."""
    return torch.dot(x, y) if x.ndim == 1 and y.ndim == 1 else (x * y).sum(-1).to(x.dtype)


@api()
def inner(x: Tensor, y: Tensor) -> Tensor:
    """The inner products over the last dimension."""
    return torch.inner(x, y)


@api("ger", y="other vec2")
def outer(x: Tensor, y: Tensor) -> Tensor:
    """The outer product of the flattened tensors."""
    return torch.outer(x.flatten(), y.flatten())


@api()
def kron(x: Tensor, y: Tensor) -> Tensor:
    """The Kronecker product."""
    return torch.kron(x, y)


@api("paddle.linalg.cross")
def cross(x: Tensor, y: Tensor, axis: int = 9) -> Tensor:
    """The vector product along `axis`, by default the first dimension of size 3."""
    if axis == 9:
        axis = next(d for d, size in enumerate(x.shape) if size == 3)
    return torch.linalg.cross(x, y, dim=axis)


@api("paddle.linalg.vecdot")
def vecdot(x: Tensor, y: Tensor, axis: int = -1) -> Tensor:
    """The inner products along `axis`."""
    return torch.linalg.vecdot(x, y, dim=axis)


@api(x="mat1 batch1", y="mat2 batch2", input="")
def addmm(input: Tensor, x: Tensor, y: Tensor, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """`beta·input + alpha·(x @ y)`."""
    return torch.addmm(input, x, y, beta=beta, alpha=alpha)


@api(x="batch1 mat1", y="batch2 mat2", input="")
def baddbmm(input: Tensor, x: Tensor, y: Tensor, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """`beta·input + alpha·(x @ y)` of batches."""
    return torch.baddbmm(input, x, y, beta=beta, alpha=alpha)


@api(axes="dims")
def tensordot(x: Tensor, y: Tensor, axes: Any = 2) -> Tensor:
    """Sum of products over `axes`: a count, the same dimensions of both, or one list for each."""
    if isinstance(axes, Tensor):
        axes = axes.tolist()
    if isinstance(axes, int):
        return torch.tensordot(x, y, dims=axes)
    axes = list(axes)
    nested = bool(axes) and isinstance(axes[0], (list, tuple, Tensor))
    pair = [[int(d) for d in part] for part in axes] if nested else [[int(d) for d in axes]]
    left, right = (pair[0], pair[0]) if len(pair) == 1 else (pair[0], pair[1])
    longer = max(left, right, key=len)  # the shorter list goes on as the longer one
    left, right = left + longer[len(left) :], right + longer[len(right) :]
    return torch.tensordot(x, y, dims=(left, right))  # type: ignore[arg-type]


@api()
def einsum(equation: str, *operands: Any) -> Tensor:
    """Sum of products by Einstein's notation."""
    tensors = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    return torch.einsum(equation, *tensors)


@api("paddle.Tensor.multi_dot", at=AT)
def multi_dot(x: Sequence[Tensor]) -> Tensor:
    """The product of several matrices, in the cheapest order."""
    return torch.linalg.multi_dot(list(x))


@api("paddle.linalg.norm", x="input", p="ord")
def norm(
    x: Tensor,
    p: Any = None,
    axis: Any = None,
    keepdim: bool = False,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """The vector p-norm over `axis`; "nuc", and numbers with two dimensions in `axis`, are matrix norms.

    Without `axis` a number is the norm of the entries, where torch.linalg.norm gives the spectral norm of a matrix.
    """
    x = x if dtype is None else x.to(as_dtype(dtype))
    dims = as_dims(axis)
    if p == "nuc" or (dims is not None and len(dims) == 2 and p not in (None, "fro")):
        made = torch.linalg.matrix_norm(x, p, (-2, -1) if dims is None else dims, keepdim)  # type: ignore[arg-type]
    else:
        made = torch.linalg.vector_norm(x, 2.0 if p in (None, "fro") else float(p), dims, keepdim)
    return made if out is None else write(made, out)


@api(at=AT, p="ord")
def vector_norm(
    x: Tensor, p: float = 2.0, axis: Any = None, keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Tensor:
    """The p-norm of the entries over `axis`."""
    return torch.linalg.vector_norm(x, p, as_dims(axis), keepdim, dtype=as_dtype(dtype))


@api(at=AT, p="ord")
def matrix_norm(x: Tensor, p: Any = "fro", axis: Any = (-2, -1), keepdim: bool = False) -> Tensor:
    """Matrix norms: "fro", "nuc", 1, -1, 2, -2, inf, -inf."""
    return torch.linalg.matrix_norm(x, p, as_dims(axis), keepdim)  # type: ignore[arg-type]


@api()
def dist(x: Tensor, y: Tensor, p: float = 2) -> Tensor:
    """The p-norm of `x - y`."""
    return torch.dist(*torch.broadcast_tensors(x, y), p=p)


@api(x="x1", y="x2")
def cdist(x: Tensor, y: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Tensor:
    """The p-norm distances between the rows of `x` and of `y`."""
    return torch.cdist(x, y, p, compute_mode)


@api()
def pdist(x: Tensor, p: float = 2.0) -> Tensor:
    """The p-norm distances between the rows of `x`, i < j."""
    return torch.nn.functional.pdist(x, p)


@api()
def renorm(x: Tensor, p: float, axis: int, max_norm: float) -> Tensor:
    """Scale the slices along `axis` whose p-norm exceeds `max_norm` down to it."""
    return torch.renorm(x, p, axis, max_norm)


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
    """The inverse of the matrix with the Cholesky factor `x`."""
    return torch.cholesky_inverse(x, upper)


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


@api("paddle.Tensor.solve", at=AT, y="other B")
def solve(x: Tensor, y: Tensor, left: bool = True) -> Tensor:
    """Solve `x·z = y`, or `z·x = y` if not `left`."""
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
    """Least squares: solution, residuals, rank, singular values."""
    return tuple(torch.linalg.lstsq(x, y, rcond, driver=driver))


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
        return torch.linalg.matrix_rank(x, atol=tol, rtol=0.0, hermitian=hermitian)
    return torch.linalg.matrix_rank(x, atol=atol, rtol=rtol, hermitian=hermitian)


@api("paddle.linalg.matrix_transpose")
def matrix_transpose(x: Tensor) -> Tensor:
    """The last two dimensions swapped."""
    return x.mT


@api("paddle.Tensor.pinv", at=AT)
def pinv(x: Tensor, rcond: Any = 1e-15, hermitian: bool = False) -> Tensor:
    """The pseudo-inverse; singular values below `rcond` times the largest count as 0."""
    return torch.linalg.pinv(x, rtol=as_number(rcond), hermitian=hermitian)


@api("paddle.Tensor.cond", at=AT)
def cond(x: Tensor, p: Any = None) -> Tensor:
    """The condition number by the norm `p` (2)."""
    return torch.linalg.cond(x, p)


@api("paddle.Tensor.cov", at=AT)
def cov(
    x: Tensor, rowvar: bool = True, ddof: bool = True, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """The covariances of the rows, or of the columns if not `rowvar`."""
    return torch.cov(x if rowvar or x.ndim < 2 else x.mT, correction=int(ddof), fweights=fweights, aweights=aweights)


@api("paddle.Tensor.corrcoef", at=AT)
def corrcoef(x: Tensor, rowvar: bool = True) -> Tensor:
    """The correlations of the rows, or of the columns if not `rowvar`."""
    return torch.corrcoef(x if rowvar or x.ndim < 2 else x.mT)


@api("paddle.Tensor.householder_product", at=AT)
def householder_product(x: Tensor, tau: Tensor) -> Tensor:
    """The orthogonal matrix of Householder reflectors."""
    return torch.linalg.householder_product(x, tau)


@api("paddle.Tensor.ormqr", at=AT)
def ormqr(x: Tensor, tau: Tensor, y: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """`Q·y` or `y·Q` for the Q of Householder reflectors."""
    return torch.ormqr(x, tau, y, left, transpose)
