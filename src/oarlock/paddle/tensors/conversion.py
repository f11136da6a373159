"""Tensors from numbers, arrays and other tensors; parameters."""

import builtins
import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import DTypeLike, as_device, as_dtype, as_ints
from oarlock.paddle.tensors.creation import finish


def convert(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` in another dtype; a complex number leaves its imaginary part, except for the bool "not zero"."""
    plain = x.is_complex() and not dtype.is_complex and dtype != torch.bool
    return (x.real if plain else x).to(dtype)


def _tensor_of(data: Any, dtype: torch.dtype | None) -> Tensor:
    if isinstance(data, Tensor):
        return data.detach().clone().to(dtype or data.dtype)
    if isinstance(data, (str, bytes)) or not isinstance(
        data, (bool, int, float, builtins.complex, np.generic, Iterable)
    ):
        raise TypeError(f"to_tensor() takes numbers, nested lists, arrays and tensors, not {data!r}")
    if isinstance(data, (list, tuple)) and (dtype is None or _holds(data, Tensor)):
        return _nested(data, dtype)
    if dtype is not None:  # the numbers in their full width, cast afterwards
        made = torch.tensor(np.asarray(data))
        return convert(made, dtype)
    if isinstance(data, (np.ndarray, np.generic)):
        array = np.asarray(data)
        if array.dtype == np.uint16:  # the bits of bfloat16, which NumPy lacks
            return torch.tensor(array).view(torch.bfloat16)
        return torch.tensor(array)
    return torch.tensor(data)


def _nested(data: Any, dtype: torch.dtype | None) -> Tensor:
    """A nested list as one tensor. Of arrays in it, only the kind of number counts: int64, or the default dtype."""
    if _holds(data, Tensor):
        parts = [_tensor_of(part, None) for part in data]
        kind = dtype or functools.reduce(torch.promote_types, [part.dtype for part in parts])
        return torch.stack([part.to(kind) for part in parts])
    if not _holds(data, (np.ndarray, np.generic)):
        return torch.tensor(data, dtype=dtype)
    made = torch.tensor(np.array(data))
    kind = torch.get_default_dtype()
    if made.is_complex():
        kind = kind.to_complex()
    elif not made.is_floating_point():
        kind = torch.bool if made.dtype == torch.bool else torch.int64
    return made.to(dtype or kind)


def _holds(data: Any, kind: Any) -> bool:
    return builtins.any(isinstance(v, kind) or (isinstance(v, (list, tuple)) and _holds(v, kind)) for v in data)


@api()
def to_tensor(
    data: Any,
    dtype: DTypeLike | None = None,
    place: Any = None,
    stop_gradient: bool = True,
    *,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A copy of `data` (numbers, nested lists, arrays, tensors). `stop_gradient=False` records gradients.

    Whole numbers give int64 and fractions the default dtype; arrays keep their dtype. An array of uint16 without
    `dtype` is taken as the bits of bfloat16, which NumPy lacks.
    """
    made = _tensor_of(data, as_dtype(dtype))
    if place is not None:
        made = made.to(as_device(place))
    return finish(made, requires_grad or not stop_gradient, pin_memory)


@api("as_tensor")
def tensor(
    data: Any,
    dtype: DTypeLike | None = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    *,
    place: Any = None,
    stop_gradient: bool = True,
) -> Tensor:
    """`to_tensor` with the arguments of torch's `tensor`."""
    made = _tensor_of(data, as_dtype(dtype))
    where = device if place is None else place
    if where is not None:
        made = made.to(as_device(where))
    return finish(made, requires_grad or not stop_gradient, pin_memory)


@api()
def asarray(
    obj: Any,
    *,
    dtype: DTypeLike | None = None,
    device: Any = None,
    copy: bool | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """`obj` as a tensor, sharing its memory where `copy` and the dtype allow it."""
    if isinstance(obj, (list, tuple)):
        obj = _nested(obj, None)
    return finish(torch.asarray(obj, dtype=as_dtype(dtype), device=as_device(device), copy=copy), requires_grad)


@api()
def from_numpy(ndarray: np.ndarray) -> Tensor:
    """A tensor that shares the memory of an array."""
    return torch.from_numpy(ndarray)


def _array_of(data: Any) -> Tensor:
    """A tensor in the dtype that NumPy gives: a fraction is float64, a number alone has the shape [1]."""
    if isinstance(data, (list, tuple)) and _holds(data, Tensor):
        return _nested(data, None)
    return torch.tensor(np.atleast_1d(np.asarray(data)) if np.isscalar(data) else np.asarray(data))


@api(x="input")
def assign(x: Any, output: Tensor | None = None) -> Tensor:
    """A copy of `x` that gradients flow through, written into `output` if given."""
    made = x.clone() if isinstance(x, Tensor) else _array_of(x)
    if output is None:
        return made
    if output.shape != made.shape:
        output.data = torch.empty(made.shape, dtype=output.dtype, device=output.device)
    return output.copy_(made)


@api()
def clone(x: Tensor) -> Tensor:
    """A copy of `x` that gradients flow through."""
    return x.clone()


@api("paddle.tensor.create_parameter", out=False)
def create_parameter(
    shape: Any,
    dtype: DTypeLike = "float32",
    name: str | None = None,
    attr: Any = None,
    is_bias: bool = False,
    default_initializer: Callable[[Tensor], Any] | None = None,
) -> torch.nn.Parameter:
    """A parameter, filled by the initializer of `attr`, else `default_initializer`, else uniform values (Xavier).

    A bias is zero by default.
    """
    from oarlock.paddle.nn.initializer import default_initializer as usual
    from oarlock.paddle.nn.parameter import ParamAttr
    from oarlock.paddle.utils.unique_name import generate

    chosen = ParamAttr.of(attr)
    if chosen is None:
        raise ValueError("create_parameter() got attr=False: there is nothing to make")
    tensor = torch.zeros(as_ints(shape), dtype=as_dtype(dtype))
    made = chosen.make(tensor, default_initializer or usual(is_bias), f"{generate('create_parameter')}.w")
    if name is not None:
        made.name = name
    return made
