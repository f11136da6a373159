"""What only Paddle's tensors have: methods and properties that are no functions of the namespace."""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import NAMES, DTypeLike, Place, as_device, as_dtype, as_ints, as_number
from oarlock.paddle.tensors.conversion import convert
from oarlock.paddle.tensors.creation import finish

AT = "paddle.Tensor"


@api(at=AT)
def astype(x: Tensor, dtype: DTypeLike) -> Tensor:
    """`x` in another dtype; a complex number leaves its imaginary part."""
    return convert(x, as_dtype(dtype) or x.dtype)


@api(at=AT)
def value(x: Tensor) -> Tensor:
    """The tensor itself."""
    return x


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
def _md5sum(x: Tensor) -> str:
    """The MD5 of the bytes."""
    return hashlib.md5(x.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def _declare_cast(name: str) -> None:
    def call(x: Tensor) -> Tensor:
        return convert(x, NAMES[name])

    call.__name__, call.__doc__ = name, f"`x` as {name}."
    api(at=AT)(call)


CASTS = "float16 float32 float64 int8 int16 int32 int64 uint8 complex64 complex128"
for _name in CASTS.split():
    _declare_cast(_name)


@api(at=AT, out=False)
def numpy(x: Tensor) -> np.ndarray:
    """The values as an array, with or without a gradient. bfloat16, which NumPy lacks, gives its bits as uint16."""
    x = x.detach().cpu()
    return x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else x.resolve_conj().resolve_neg().numpy()


@api(at=AT)
def to(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`x` on another device, in another dtype, or in those of another tensor: names as strings or objects."""
    words = ("device", "dtype", "blocking", "other", "place", "copy", "non_blocking", "memory_format")
    if unknown := sorted(set(kwargs) - set(words)):
        raise TypeError(f"to() got an unexpected keyword argument {unknown[0]!r}; known are {', '.join(words)}")
    device, dtype = as_device(kwargs.get("device", kwargs.get("place"))), as_dtype(kwargs.get("dtype"))
    for value in (*args, kwargs.get("other")):
        if isinstance(value, Tensor):
            device, dtype = value.device, value.dtype
        elif isinstance(value, (torch.dtype, np.dtype, type)) or (isinstance(value, str) and _is_dtype(value)):
            dtype = as_dtype(value)
        elif isinstance(value, (str, Place, torch.device)):
            device = as_device(value)
    quick = kwargs.get("non_blocking", kwargs.get("blocking") is False)
    layout = kwargs.get("memory_format", torch.preserve_format)
    return x.to(device or x.device, dtype or x.dtype, quick, bool(kwargs.get("copy")), memory_format=layout)


def _is_dtype(word: str) -> bool:
    try:
        return as_dtype(word) is not None
    except TypeError:
        return False


@api(at=AT, out=False)
def item(x: Tensor, *args: int) -> Any:
    """The only element, or the one at an index: one number into the flattened tensor, or one per dimension."""
    if not args:
        return x.item()
    return (x.flatten()[args[0]] if len(args) == 1 else x[args]).item()


@api(at=AT, out=False, grad_tensor="gradient")
def backward(x: Tensor, grad_tensor: Tensor | None = None, retain_graph: bool = False) -> None:
    """Gradients of `x`, weighted by `grad_tensor` (ones where it is None, for any shape)."""
    weight = torch.ones_like(x) if grad_tensor is None else grad_tensor
    torch.autograd.backward([x], [weight], retain_graph)


@api(at=AT, out=False)
def split_with_sizes(x: Tensor, split_sizes: Any, dim: int = 0) -> list[Tensor]:
    """Parts of the given sizes along `dim`."""
    return list(torch.split(x, as_ints(split_sizes), dim))


@api(at=AT, variadic="size", size="shape")
def new_empty(
    x: Tensor,
    size: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Undefined values in the dtype and on the device of `x`."""
    made = x.new_empty(as_ints(size), dtype=as_dtype(dtype), device=as_device(device))
    return finish(made, requires_grad, pin_memory)


@api(at=AT, variadic="size", size="shape")
def new_zeros(
    x: Tensor,
    size: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Zeros in the dtype and on the device of `x`."""
    made = x.new_zeros(as_ints(size), dtype=as_dtype(dtype), device=as_device(device))
    return finish(made, requires_grad, pin_memory)


@api(at=AT, variadic="size", size="shape")
def new_ones(
    x: Tensor,
    size: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Ones in the dtype and on the device of `x`."""
    made = x.new_ones(as_ints(size), dtype=as_dtype(dtype), device=as_device(device))
    return finish(made, requires_grad, pin_memory)


@api(at=AT, size="shape")
def new_full(
    x: Tensor,
    size: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """One value in the dtype and on the device of `x`."""
    made = x.new_full(as_ints(size), as_number(fill_value), dtype=as_dtype(dtype), device=as_device(device))
    return finish(made, requires_grad, pin_memory)


@api(at=AT)
def type_as(x: Tensor, other: Tensor) -> Tensor:
    """`x` in the dtype of another tensor."""
    return x.to(other.dtype)


@api(at=AT)
def pin_memory(x: Tensor, blocking: bool = True) -> Tensor:
    """A copy in page-locked memory."""
    return x.pin_memory()


@api(at=AT)
def cuda(x: Tensor, device_id: int | None = None, blocking: bool = True) -> Tensor:
    """A copy on a GPU, the current one unless `device_id` says otherwise."""
    return x.cuda(device_id, non_blocking=not blocking)


@api(at=AT)
def coalesce(x: Tensor) -> Tensor:
    """A sparse tensor whose indices are unique and sorted."""
    return x.coalesce()


@api(at=AT, out=False)
def get_tensor(x: Tensor) -> Tensor:
    """The tensor itself; Paddle's lower-level tensor of the same memory."""
    return x


@api(at=AT, out=False)
def get_selected_rows(x: Tensor) -> None:
    """None: a gradient of selected rows is a sparse tensor on torch."""


@api(at=AT, out=False)
def is_selected_rows(x: Tensor) -> bool:
    """False: a gradient of selected rows is a sparse tensor on torch."""
    return False


@api(at=AT, out=False)
def rows(x: Tensor) -> list[int]:
    """The rows that a sparse gradient has."""
    if x.layout != torch.sparse_coo:
        raise TypeError("rows() needs a sparse tensor")
    return x.coalesce().indices()[0].tolist()


@api(at=AT, out=False)
def create_tensor(dtype: DTypeLike, name: str | None = None, persistable: bool = False) -> Tensor:
    """A tensor without elements."""
    return torch.empty(0, dtype=as_dtype(dtype))


def _texts(x: Tensor) -> dict[str, Any]:
    return vars(x).setdefault("_paddle_texts", {})


@api(at=AT, out=False)
def set_string_list(x: Tensor, value: list[str]) -> None:
    """Keep a list of texts with the tensor."""
    _texts(x)["list"] = list(value)


@api(at=AT, out=False)
def set_vocab(x: Tensor, value: dict[str, int]) -> None:
    """Keep a vocabulary, word to number, with the tensor."""
    _texts(x)["vocabulary"] = dict(value)


@api(at=AT, out=False)
def get_map_tensor(x: Tensor) -> dict[str, int]:
    """The vocabulary that `set_vocab` gave."""
    if "vocabulary" not in _texts(x):
        raise TypeError("this tensor has no vocabulary; set_vocab() gives it one")
    return _texts(x)["vocabulary"]
