"""Elementwise functions of two tensors. A number is weak, as in torch; a 0-D tensor often is not, as in Paddle."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api, write
from oarlock.paddle.dtypes import as_number


def as_tensors(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Both as tensors; a number takes the dtype of the other one, if that holds it."""
    if not isinstance(x, Tensor):
        x = torch.as_tensor(x, dtype=_fitting(x, y) if isinstance(y, Tensor) else None)
    if not isinstance(y, Tensor):
        y = torch.as_tensor(y, dtype=_fitting(y, x))
    return x, y


def _fitting(value: Any, beside: Tensor) -> torch.dtype:
    value = as_number(value)
    return torch.result_type(beside, value) if isinstance(value, (int, float, complex)) else beside.dtype


def alike(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Both as tensors of the dtype that holds the two of them, 0-D or not."""
    x, y = as_tensors(x, y)
    dtype = torch.promote_types(x.dtype, y.dtype)
    return x.to(dtype), y.to(dtype)


def is_inexact(x: Tensor) -> bool:
    """Whether the dtype has fractions."""
    return x.is_floating_point() or x.is_complex()


def _floats(x: Any, y: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    x, y = alike(x, y)
    return (x, y) if is_inexact(x) else (x.to(dtype), y.to(dtype))


def _atan2(x: Any, y: Any) -> Tensor:
    return torch.atan2(*_floats(x, y, torch.float64))


def _copysign(x: Any, y: Any) -> Tensor:
    if isinstance(x, Tensor) and not isinstance(y, Tensor):
        return torch.copysign(x, y).to(x.dtype)
    x, y = as_tensors(x, y)
    return torch.copysign(x, y).to(torch.result_type(x, y))


def _gammainc(x: Any, y: Any) -> Tensor:
    x, y = alike(x, y)
    return torch.special.gammainc(x.detach(), y)  # there is no derivative in the order x


def _gammaincc(x: Any, y: Any) -> Tensor:
    x, y = alike(x, y)
    return torch.special.gammaincc(x.detach(), y)


def _heaviside(x: Any, y: Any) -> Tensor:
    x, y = alike(x, y)
    return torch.where(x == 0, y, torch.sign(x).clamp(min=0))  # unlike torch.heaviside, this has a derivative


def _hypot(x: Any, y: Any) -> Tensor:
    x, y = as_tensors(x, y)
    if torch.result_type(x, y).is_floating_point:
        return torch.hypot(x, y)
    return torch.sqrt((x * x + y * y).to(torch.promote_types(torch.result_type(x, y), torch.get_default_dtype())))


def _ldexp(x: Any, y: Any) -> Tensor:
    x, y = as_tensors(x, y)
    wide = torch.float64 if torch.float64 in (x.dtype, y.dtype) else torch.float32
    return x.to(wide) * torch.exp2(y.to(wide))


def _logaddexp(x: Any, y: Any) -> Tensor:
    return torch.logaddexp(*_floats(x, y, torch.get_default_dtype()))


def _alike(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, Any], Tensor]:
    return lambda x, y: function(*alike(x, y))


FUNCTIONS: dict[str, tuple[Callable[[Any, Any], Tensor], str]] = {
    "atan2": (_atan2, ""),
    "copysign": (_copysign, ""),
    "fmax": (_alike(torch.fmax), ""),
    "fmin": (_alike(torch.fmin), ""),
    "gammainc": (_gammainc, ""),
    "gammaincc": (_gammaincc, ""),
    "gcd": (_alike(torch.gcd), ""),
    "heaviside": (_heaviside, ""),
    "hypot": (_hypot, ""),
    "lcm": (_alike(torch.lcm), ""),
    "ldexp": (_ldexp, ""),
    "logaddexp": (_logaddexp, ""),
    "maximum": (_alike(torch.maximum), ""),
    "minimum": (_alike(torch.minimum), ""),
    "multiply": (torch.mul, "mul"),
    "nextafter": (_alike(torch.nextafter), ""),
    "remainder": (torch.remainder, "mod floor_mod"),
}


def _declare(name: str, function: Callable[[Any, Any], Tensor], more: str) -> None:
    def call(x: Tensor, y: Any) -> Tensor:
        return function(x, y)

    call.__name__ = name
    call.__doc__ = f"`{name}` of the elements of `x` and `y`, broadcast."
    (api(more, y="values other") if name == "heaviside" else api(more))(call)


for _name, (_function, _more) in FUNCTIONS.items():
    _declare(_name, _function, _more)


@api()
def add(x: Tensor, y: Any, *, alpha: Any = 1) -> Tensor:
    """`x + alpha·y`."""
    return torch.add(x, y) if alpha == 1 else torch.add(x, y * alpha)


@api("sub")
def subtract(x: Tensor, y: Any, *, alpha: Any = 1) -> Tensor:
    """`x - alpha·y`."""
    return torch.sub(x, y) if alpha == 1 else torch.sub(x, y * alpha)


@api("div true_divide")
def divide(x: Tensor, y: Any, *, rounding_mode: str | None = None) -> Tensor:
    """`x / y`, rounded by "trunc" or "floor" if asked. Integers give floats unless rounded."""
    return torch.div(x, y, rounding_mode=rounding_mode)


@api()
def floor_divide(x: Tensor, y: Any) -> Tensor:
    """`⌊x / y⌋`, towards -∞, with a gradient of 0. A number counts as int64 or float32: `int8 // 2` is int64."""
    x, y = (value if isinstance(value, Tensor) else torch.as_tensor(value) for value in (x, y))
    return torch.div(*alike(x, y), rounding_mode="floor")


@api(y="exponent other")
def pow(x: Any, y: Any) -> Tensor:
    """`x ** y`. A float exponent of an integer tensor is truncated: the result keeps the dtype of `x`."""
    if isinstance(x, Tensor) and isinstance(y, Tensor) and y.ndim == 0 and y.dtype == x.dtype and not y.requires_grad:
        y = as_number(y)
    if isinstance(x, Tensor) and isinstance(y, float) and not is_inexact(x):
        y = int(y)
    return torch.pow(x, y)


@api("bitwise_invert")
def bitwise_not(x: Tensor, out: Tensor | None = None) -> Tensor:
    """`~x`."""
    return into(torch.bitwise_not(x), out)


@api()
def bitwise_and(x: Tensor, y: Any, out: Tensor | None = None) -> Tensor:
    """`x & y`."""
    return into(torch.bitwise_and(x, y), out)


@api()
def bitwise_or(x: Tensor, y: Any, out: Tensor | None = None) -> Tensor:
    """`x | y`."""
    return into(torch.bitwise_or(x, y), out)


@api()
def bitwise_xor(x: Tensor, y: Any, out: Tensor | None = None) -> Tensor:
    """`x ^ y`."""
    return into(torch.bitwise_xor(x, y), out)


@api()
def bitwise_left_shift(x: Tensor, y: Any, is_arithmetic: bool = True, out: Tensor | None = None) -> Tensor:
    """`x << y`."""
    return into(torch.bitwise_left_shift(x, y), out)


@api()
def bitwise_right_shift(x: Tensor, y: Any, is_arithmetic: bool = True, out: Tensor | None = None) -> Tensor:
    """`x >> y`, keeping the sign, or filling with zeros if not `is_arithmetic`."""
    shifted = torch.bitwise_right_shift(x, y)
    if not is_arithmetic and x.dtype.is_signed:
        bits = torch.iinfo(x.dtype).bits
        y = torch.as_tensor(y, dtype=x.dtype, device=x.device)
        kept = ~torch.bitwise_left_shift(torch.full_like(shifted, -1), bits - y)
        shifted = torch.where(y == 0, x, shifted & torch.where((y < 0) | (y >= bits), 0, kept))
    return into(shifted, out)


def into(result: Tensor, out: Tensor | None) -> Tensor:
    """`result`, written into `out` if there is one."""
    return result if out is None else write(result, out)
