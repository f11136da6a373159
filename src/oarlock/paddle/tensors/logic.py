"""Comparisons, logical functions and questions about tensors."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import as_dtype, as_ints
from oarlock.paddle.tensors.binary import alike

COMPARISONS: dict[str, tuple[Callable[..., Tensor], str]] = {
    "equal": (torch.eq, "eq"),
    "not_equal": (torch.ne, "ne"),
    "greater_than": (torch.gt, "gt greater"),
    "greater_equal": (torch.ge, "ge"),
    "less_than": (torch.lt, "lt less"),
    "less_equal": (torch.le, "le"),
}
LOGICAL = {"logical_and": torch.logical_and, "logical_or": torch.logical_or, "logical_xor": torch.logical_xor}


def _declare(name: str, function: Callable[..., Tensor], more: str) -> None:
    def call(x: Tensor, y: Any) -> Tensor:
        return function(x, y)

    call.__name__ = name
    call.__doc__ = f"`{name}` of the elements of `x` and `y`, broadcast; bool."
    api(more)(call)


def _declare_logical(name: str, function: Callable[..., Tensor]) -> None:
    def call(x: Tensor, y: Any) -> Tensor:
        return function(x, y)

    call.__name__ = name
    call.__doc__ = f"`{name}` of the elements of `x` and `y`, broadcast; numbers count as true unless 0."
    api()(call)


for _name, (_function, _more) in COMPARISONS.items():
    _declare(_name, _function, _more)
for _name, _function in LOGICAL.items():
    _declare_logical(_name, _function)


@api()
def logical_not(x: Tensor) -> Tensor:
    """Whether elements are zero."""
    return torch.logical_not(x)


@api()
def equal_all(x: Tensor, y: Tensor) -> Tensor:
    """Whether shapes and all elements are equal, as a 0-D bool tensor."""
    same = x.shape == y.shape and bool((x == y).all())
    return torch.tensor(same, device=x.device)


@api()
def allclose(x: Tensor, y: Tensor, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Tensor:
    """Whether `|x - y| <= atol + rtol·|y|` everywhere, as a 0-D bool tensor."""
    return torch.isclose(*alike(x, y), float(rtol), float(atol), equal_nan).all()


@api()
def isclose(x: Tensor, y: Tensor, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Tensor:
    """Where `|x - y| <= atol + rtol·|y|`."""
    return torch.isclose(*alike(x, y), float(rtol), float(atol), equal_nan)


@api()
def is_empty(x: Tensor) -> Tensor:
    """Whether there are no elements, as a 0-D bool tensor."""
    return torch.tensor(x.numel() == 0)


@api(x="input obj", out=False)
def is_tensor(x: Any) -> bool:
    """Whether `x` is a tensor."""
    return isinstance(x, Tensor)


@api(out=False)
def is_complex(x: Tensor) -> bool:
    """Whether the dtype is complex."""
    return x.is_complex()


@api(out=False)
def is_floating_point(x: Tensor) -> bool:
    """Whether the dtype is a floating one."""
    return x.is_floating_point()


@api(out=False)
def is_integer(x: Tensor) -> bool:
    """Whether the dtype is an integer one."""
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


@api()
def rank(input: Tensor) -> Tensor:
    """The number of dimensions, as a 0-D int32 tensor."""
    return torch.tensor(input.ndim, dtype=torch.int32)


@api()
def shape(input: Tensor) -> Tensor:
    """The sizes, as an int64 tensor."""
    return torch.tensor(list(input.shape), dtype=torch.int64)


@api(out=False)
def tolist(x: Tensor) -> Any:
    """The values as nested lists."""
    return x.tolist()


@api(out=False)
def broadcast_shape(x_shape: Any, y_shape: Any) -> list[int]:
    """The shape that two shapes broadcast to, as a list."""
    return list(torch.broadcast_shapes(as_ints(x_shape), as_ints(y_shape)))


@api(out=False)
def broadcast_shapes(*shapes: Any) -> list[int]:
    """The shape that the shapes broadcast to, as a list where torch gives a Size."""
    return list(torch.broadcast_shapes(*(as_ints(shape) for shape in shapes)))


@api(dtype="type", out=False)
def finfo(dtype: Any) -> torch.finfo:
    """The limits of a floating dtype."""
    return torch.finfo(as_dtype(dtype))  # type: ignore[arg-type]


@api(dtype="type", out=False)
def iinfo(dtype: Any) -> torch.iinfo:
    """The limits of an integer dtype."""
    return torch.iinfo(as_dtype(dtype))  # type: ignore[arg-type]
