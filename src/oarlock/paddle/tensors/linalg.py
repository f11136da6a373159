"""Products and norms."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api, write
from oarlock.paddle.dtypes import DTypeLike, as_dims, as_dtype
from oarlock.paddle.tensors.binary import alike

AT = "paddle.linalg"


def _alike(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return (x, y) if x.dtype == y.dtype else alike(x, y)


@api("paddle.linalg.matmul")
def matmul(x: Tensor, y: Tensor, transpose_x: bool = False, transpose_y: bool = False) -> Tensor:
    """The matrix product, batched and broadcast, with the last two dimensions of either swapped first if asked."""
    if transpose_x and x.ndim > 1:
        x = x.mT
    if transpose_y and y.ndim > 1:
        y = y.mT
    return torch.matmul(*_alike(x, y))


@api(mat2="y")
def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """The matrix product."""
    return torch.matmul(*_alike(input, mat2))


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
    """The inner products over the last dimension; beside a tensor of one element, the elementwise product."""
    if x.numel() == 1 or y.numel() == 1:
        x, y = _alike(x, y)
        return x * y
    return torch.inner(*_alike(x, y))


@api("ger", y="other vec2")
def outer(x: Tensor, y: Tensor) -> Tensor:
    """The outer product of the flattened tensors."""
    return torch.outer(x.flatten(), y.flatten())


@api()
def kron(x: Tensor, y: Tensor) -> Tensor:
    """The Kronecker product."""
    return torch.kron(x.contiguous(), y.contiguous())


@api("paddle.linalg.cross")
def cross(x: Tensor, y: Tensor, axis: int | None = 9) -> Tensor:
    """The vector product along `axis`, by default the first dimension of size 3."""
    if axis is None or axis == 9:
        axis = next(d for d, size in enumerate(x.shape) if size == 3)
    return torch.linalg.cross(*_alike(x, y), dim=axis)


@api("paddle.linalg.vecdot")
def vecdot(x: Tensor, y: Tensor, axis: int | None = -1) -> Tensor:
    """The inner products, of the conjugate of `x` with `y`, along `axis` (None: all)."""
    return (x.conj() * y).sum(axis)


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
    x, y = _alike(x, y)
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
    """The vector p-norm (2) over `axis`; "nuc", and numbers with two dimensions in `axis`, are matrix norms.

    Without `axis` a number is the norm of the entries, where torch.linalg.norm gives the spectral norm of a matrix.
    """
    x = x if dtype is None else x.to(as_dtype(dtype))
    dims = as_dims(axis)
    if p == "nuc" or (dims is not None and len(dims) == 2 and p != "fro"):
        made = torch.linalg.matrix_norm(x, 2 if p is None else p, (-2, -1) if dims is None else dims, keepdim)  # type: ignore[arg-type]
    else:
        made = _vector_norm(x, 2.0 if p in (None, "fro") else float(p), dims, keepdim)
    return made if out is None else write(made, out)


@api(at=AT, p="ord")
def vector_norm(
    x: Tensor, p: float = 2.0, axis: Any = None, keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Tensor:
    """The p-norm of the entries over `axis`."""
    return _vector_norm(x if dtype is None else x.to(as_dtype(dtype)), p, as_dims(axis), keepdim)


def _vector_norm(x: Tensor, p: float, dims: tuple[int, ...] | None, keepdim: bool) -> Tensor:
    if not x.numel():
        p = 2.0  # the norm of nothing is 0, for infinite p too
    return torch.linalg.vector_norm(x, p, dims, keepdim)


@api(at=AT, p="ord")
def matrix_norm(x: Tensor, p: Any = "fro", axis: Any = (-2, -1), keepdim: bool = False) -> Tensor:
    """Matrix norms: "fro", "nuc", 1, -1, 2, -2, inf, -inf."""
    return torch.linalg.matrix_norm(x, p, as_dims(axis), keepdim)  # type: ignore[arg-type]


@api()
def dist(x: Tensor, y: Tensor, p: float = 2) -> Tensor:
    """The p-norm of `x - y`."""
    x, y = torch.broadcast_tensors(*_alike(x, y))
    return torch.dist(x, y, p=p) if x.numel() else (x - y).sum()


@api(x="x1", y="x2")
def cdist(x: Tensor, y: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Tensor:
    """The p-norm distances between the rows of `x` and of `y`."""
    return torch.cdist(*_alike(x, y), p, compute_mode)


@api()
def pdist(x: Tensor, p: float = 2.0) -> Tensor:
    """The p-norm distances between the rows of `x`, i < j."""
    return torch.nn.functional.pdist(x, p)


@api(max_norm="maxnorm")
def renorm(x: Tensor, p: float, axis: int, max_norm: float) -> Tensor:
    """Scale the slices along `axis` whose p-norm exceeds `max_norm` down to it."""
    others = tuple(dim for dim in range(x.ndim) if dim != axis % x.ndim)
    norms = torch.linalg.vector_norm(x, p, others, keepdim=True) if others else x.abs()
    return x * torch.where(norms > max_norm, max_norm / (norms + 1e-7), 1.0)
