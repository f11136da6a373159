"""`patch_tensor()`: Paddle's names that torch.Tensor lacks, opt-in and removable. No name of torch is replaced."""

import builtins
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oarlock.paddle.declare import REGISTRY, api
from oarlock.paddle.dtypes import DTypeLike, Place, as_dtype, place_of

AT = "paddle.Tensor"


@api(at=AT)
def astype(x: Tensor, dtype: DTypeLike) -> Tensor:
    """`x` in another dtype."""
    return x.to(as_dtype(dtype))


@api(at=AT)
def value(x: Tensor) -> Tensor:
    """The tensor itself."""
    return x


@api(at=AT, out=False)
def set_value(x: Tensor, value: Any) -> None:
    """Copy a tensor or an array of the same shape into `x`, outside of the gradient's record."""
    made = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    if made.shape != x.shape:
        raise ValueError(f"set_value() got the shape {list(made.shape)} for a tensor of shape {list(x.shape)}")
    with torch.no_grad():
        x.copy_(made)


@api("clear_grad", at=AT, out=False)
def clear_gradient(x: Tensor, set_to_zero: bool = True) -> None:
    """Forget the gradient, or fill it with zeros."""
    if x.grad is not None:
        x.grad = torch.zeros_like(x.grad) if set_to_zero else None


@api(at=AT, out=False)
def gradient(x: Tensor) -> np.ndarray | None:
    """The gradient as an array."""
    return None if x.grad is None else x.grad.detach().cpu().numpy()


@api(at=AT, out=False)
def retain_grads(x: Tensor) -> None:
    """Keep the gradient of a tensor that is not a leaf."""
    x.retain_grad()


@api(at=AT, out=False)
def is_dense(x: Tensor) -> bool:
    """Whether the layout is strided."""
    return x.layout == torch.strided


@api(at=AT, out=False)
def is_sparse_coo(x: Tensor) -> bool:
    """Whether the layout is COO."""
    return x.layout == torch.sparse_coo


@api(at=AT, out=False)
def is_dist(x: Tensor) -> bool:
    """Whether it is a distributed tensor."""
    return hasattr(x, "placements") and hasattr(x, "device_mesh")


@api(at=AT, out=False)
def is_same_shape(x: Tensor, y: Tensor) -> bool:
    """Whether two shapes are equal."""
    return x.shape == y.shape


@api(at=AT, out=False)
def get_strides(x: Tensor) -> list[int]:
    """The strides, in elements."""
    return list(x.stride())


@api(at=AT, out=False)
def nnz(x: Tensor) -> int:
    """The number of stored elements of a sparse tensor."""
    return x._nnz()


@api(at=AT, out=False)
def crows(x: Tensor) -> Tensor:
    """The row pointers of a CSR tensor."""
    return x.crow_indices()


@api(at=AT, out=False)
def cols(x: Tensor) -> Tensor:
    """The column indices of a CSR tensor."""
    return x.col_indices()


@api(at=AT, out=False)
def to_sparse_coo(x: Tensor, sparse_dim: int) -> Tensor:
    """The tensor in COO layout with `sparse_dim` sparse dimensions."""
    return x.to_sparse(sparse_dim)


@api(at=AT)
def apply(x: Tensor, func: Callable[[Tensor], Tensor]) -> Tensor:
    """`func(x)`; `x` must not require gradients."""
    if x.requires_grad:
        raise RuntimeError("apply() works on a tensor that does not require gradients")
    return func(x)


@api("fill_diagonal_tensor", at=AT, bare=True)
def _fill_diagonal_tensor(x: Tensor, y: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """`x` with `y` on a diagonal."""
    return torch.diagonal_scatter(x, y, offset, dim1, dim2)


@api(at=AT, out=False)
def fill_diagonal_tensor_(x: Tensor, y: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Put `y` on a diagonal of `x`."""
    return x.copy_(torch.diagonal_scatter(x, y, offset, dim1, dim2))


@api(at=AT, out=False)
def _md5sum(x: Tensor) -> str:
    """The MD5 of the bytes."""
    return hashlib.md5(x.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def _stop_gradient(x: Tensor) -> bool:
    return not x.requires_grad


def _set_stop_gradient(x: Tensor, stop: bool) -> None:
    x.requires_grad_(not stop)


def _place(x: Tensor) -> Place:
    return place_of(x)


PROPERTIES: dict[str, property] = {
    "stop_gradient": property(
        _stop_gradient, _set_stop_gradient, doc="Whether gradients stop here: not requires_grad."
    ),
    "place": property(_place, doc="Where the tensor lives."),
    "persistable": property(
        lambda x: x.__dict__.get("_persistable", isinstance(x, torch.nn.Parameter)),
        lambda x, value: x.__dict__.__setitem__("_persistable", value),
        doc="Whether it outlives a step: True for parameters.",
    ),
    "inplace_version": property(lambda x: x._version, doc="How often it was changed in place."),
    "strides": property(lambda x: list(x.stride()), doc="The strides, in elements."),
    "offset": property(lambda x: x.storage_offset() * x.element_size(), doc="Where it starts in its memory, in bytes."),
    "grad_": property(lambda x: x.grad, doc="The gradient."),
}
# Functions of tensors that are methods too, where torch.Tensor has no method of that name.
NOT_METHODS = """
arange eye empty full linspace logspace meshgrid ones rand randint randn randperm range seed manual_seed uniform zeros
to_tensor tensor asarray as_tensor from_numpy einsum finfo iinfo grad save load is_autocast_enabled normal
get_default_dtype set_default_dtype get_device set_device in_dynamic_mode in_dynamic_or_pir_mode disable_static
is_grad_enabled get_autocast_dtype get_autocast_gpu_dtype get_autocast_cpu_dtype set_printoptions get_rng_state
set_rng_state get_cuda_rng_state set_cuda_rng_state standard_normal log_normal tril_indices triu_indices numel shape
full_like empty_like ones_like zeros_like rand_like randn_like assign complex is_compiled_with_cuda one_hot
is_compiled_with_rocm is_compiled_with_xpu is_compiled_with_distribute is_compiled_with_custom_device row_stack
"""
_patched: list[str] = []


def method_names() -> dict[str, Callable[..., Any]]:
    """Every declared function that is a method of Paddle's tensors."""
    found: dict[str, Callable[..., Any]] = {}
    excluded = NOT_METHODS.split()
    for full, declaration in REGISTRY.items():
        where, _, short = full.rpartition(".")
        if where == "paddle" and short not in excluded:
            found[short] = declaration.function
    for full, declaration in REGISTRY.items():
        where, _, short = full.rpartition(".")
        if where == AT:
            found[short] = declaration.function
    return found


def patch_tensor() -> builtins.list[str]:
    """Give torch.Tensor the names of Paddle's that it lacks (`astype`, `stop_gradient`, `gather_nd`, ...).

    No name of torch is replaced, so libraries go on working. Returns the names; `unpatch_tensor` removes them.
    """
    for name, attribute in {**method_names(), **PROPERTIES}.items():
        if not hasattr(Tensor, name):
            setattr(Tensor, name, attribute)
            _patched.append(name)
    return sorted(_patched)


def unpatch_tensor() -> None:
    """Remove what `patch_tensor` added."""
    for name in _patched:
        delattr(Tensor, name)
    _patched.clear()
