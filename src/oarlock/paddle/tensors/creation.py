"""Tensors from shapes, numbers and arrays."""

import builtins
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import DTypeLike, as_device, as_dtype, as_ints, as_number


def finish(tensor: Tensor, requires_grad: bool = False, pin_memory: bool = False) -> Tensor:
    """The tensor with the options that every factory takes."""
    if pin_memory and torch.cuda.is_available():  # without CUDA there is nothing to pin for
        tensor = tensor.pin_memory()
    if requires_grad and not (tensor.is_floating_point() or tensor.is_complex()):
        vars(tensor)["_stop_gradient"] = False  # integers have no gradient; what was said is kept
        return tensor
    return tensor.requires_grad_() if requires_grad else tensor


_WIDE = frozenset([torch.float32, torch.float64])


def number_of(value: Any, dtype: torch.dtype) -> Any:
    """A value as a number of `dtype`, as a cast would make it: infinite, wrapped around, without imaginary part."""
    if (type(value) is float or type(value) is int) and dtype in _WIDE and -(1 << 31) < value < 1 << 31:
        return value  # most are: nothing to wrap or to cut off
    value = float(value) if isinstance(value, str) else as_number(value)
    if isinstance(value, builtins.complex) and not dtype.is_complex and dtype != torch.bool:
        value = value.real
    wide = torch.int64 if isinstance(value, int) else torch.complex128 if dtype.is_complex else torch.float64
    return value if dtype == torch.bool else torch.tensor(value, dtype=wide).to(dtype).item()


def _default(dtype: DTypeLike | None, value: Any = 1.0) -> torch.dtype:
    if dtype is not None:
        return as_dtype(dtype)  # type: ignore[return-value]
    if isinstance(value, bool):
        return torch.bool
    return torch.complex128 if isinstance(value, builtins.complex) else torch.get_default_dtype()


@api(variadic="shape")
def zeros(
    shape: Any,
    dtype: DTypeLike | None = None,
    *,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A tensor of zeros. The dtype is the default one (float32)."""
    return finish(
        torch.zeros(as_ints(shape), dtype=_default(dtype), device=as_device(device)), requires_grad, pin_memory
    )


@api(variadic="shape")
def ones(
    shape: Any,
    dtype: DTypeLike | None = None,
    *,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A tensor of ones. The dtype is the default one (float32)."""
    return finish(
        torch.ones(as_ints(shape), dtype=_default(dtype), device=as_device(device)), requires_grad, pin_memory
    )


@api(variadic="shape")
def empty(
    shape: Any,
    dtype: DTypeLike | None = None,
    *,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A tensor of undefined values. The dtype is the default one (float32)."""
    return finish(
        torch.empty(as_ints(shape), dtype=_default(dtype), device=as_device(device)), requires_grad, pin_memory
    )


@api()
def full(
    shape: Any,
    fill_value: Any,
    dtype: DTypeLike | None = None,
    *,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A tensor filled with one value. An integer gives the default dtype (float32), where torch gives int64."""
    kind = _default(dtype, 1.0 if isinstance(fill_value, Tensor) else as_number(fill_value))
    made = torch.full(as_ints(shape), number_of(fill_value, kind), dtype=kind, device=as_device(device))
    return finish(made, requires_grad, pin_memory)


@api(at="paddle.tensor")
def fill_constant(shape: Any, dtype: DTypeLike, value: Any, force_cpu: bool = False) -> Tensor:
    """A tensor filled with one value, with the arguments in the order of Paddle's old function."""
    return full(shape, value, dtype)


def _like(x: Tensor, dtype: DTypeLike | None, device: Any) -> dict[str, Any]:
    return {"dtype": as_dtype(dtype) or x.dtype, "device": as_device(device) or x.device}


@api()
def zeros_like(
    x: Tensor,
    dtype: DTypeLike | None = None,
    *,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Zeros of the shape, dtype and device of `x`."""
    return finish(torch.zeros_like(x, **_like(x, dtype, device)), requires_grad, pin_memory)


@api()
def ones_like(
    x: Tensor,
    dtype: DTypeLike | None = None,
    *,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Ones of the shape, dtype and device of `x`."""
    return finish(torch.ones_like(x, **_like(x, dtype, device)), requires_grad, pin_memory)


@api()
def empty_like(
    x: Tensor,
    dtype: DTypeLike | None = None,
    *,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Undefined values of the shape, dtype and device of `x`."""
    return finish(torch.empty_like(x, **_like(x, dtype, device)), requires_grad, pin_memory)


@api()
def full_like(
    x: Tensor,
    fill_value: Any,
    dtype: DTypeLike | None = None,
    *,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """One value in the shape, dtype and device of `x`."""
    where = _like(x, dtype, device)
    made = torch.full_like(x, number_of(fill_value, where["dtype"]), **where)
    return finish(made, requires_grad, pin_memory)


@api()
def arange(
    start: Any = 0,
    end: Any = None,
    step: Any = 1,
    dtype: DTypeLike | None = None,
    *,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """`start, start + step, ...` below `end`; int64 where all three are integers."""
    first, last, by = (as_number(v) for v in (start, end, step))
    if last is None:
        first, last = 0, first
    dtype = as_dtype(dtype)
    if dtype is None:
        whole = all(isinstance(v, int) for v in (first, last, by))
        dtype = torch.int64 if whole else torch.get_default_dtype()
    if (last - first) * by < 0:
        last = first
    return finish(torch.arange(first, last, by, dtype=dtype, device=as_device(device)), requires_grad, pin_memory)


@api()
def range(
    start: Any = 0,
    end: Any = None,
    step: Any = 1,
    dtype: DTypeLike | None = None,
    *,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`start, start + step, ...` up to and including `end`; float32 even for integers."""
    first, last, by = (as_number(v) for v in (start, end, step))
    if last is None:
        first, last = 0, first
    count = int(np.floor((last - first) / by)) + 1
    made = first + by * torch.arange(count, dtype=torch.float64)
    return finish(made.to(_default(dtype)).to(as_device(device)), requires_grad)


@api(num_rows="n", num_columns="m")
def eye(
    num_rows: Any,
    num_columns: Any = None,
    dtype: DTypeLike | None = None,
    *,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Ones on the diagonal of a `num_rows` x `num_columns` matrix."""
    rows = int(num_rows)
    columns = rows if num_columns is None else int(num_columns)
    made = torch.eye(rows, columns, dtype=_default(dtype), device=as_device(device))
    return finish(made, requires_grad, pin_memory)


@api(stop="end", num="steps")
def linspace(
    start: Any, stop: Any, num: Any, dtype: DTypeLike | None = None, *, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`num` evenly spaced values from `start` to `stop`."""
    made = torch.linspace(float(as_number(start)), float(as_number(stop)), int(num), dtype=_default(dtype))
    return finish(made.to(as_device(device)), requires_grad)


@api(stop="end", num="steps")
def logspace(
    start: Any,
    stop: Any,
    num: Any,
    base: Any = 10.0,
    dtype: DTypeLike | None = None,
    *,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`base ** v` for `num` evenly spaced `v` from `start` to `stop`."""
    first, last, root = (float(as_number(v)) for v in (start, stop, base))
    made = torch.logspace(first, last, int(num), root, dtype=_default(dtype))
    return finish(made.to(as_device(device)), requires_grad)


@api()
def complex(real: Tensor, imag: Tensor) -> Tensor:
    """`real + i·imag`, broadcast."""
    real, imag = torch.broadcast_tensors(real, imag)
    return torch.complex(real, imag)


@api()
def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """`abs · exp(i·angle)`."""
    return torch.polar(abs, angle)


@api()
def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """`y[..., c] = (x == c)` in the default dtype."""
    return torch.nn.functional.one_hot(x.long(), int(num_classes)).to(torch.get_default_dtype())
