"""Elementwise arithmetic. Function by function as torch's unless the docstring says otherwise."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api, write
from oarlock.paddle.dtypes import as_number

SAME = """
abs acos acosh angle asin asinh atan atanh ceil conj cos cosh deg2rad digamma erf erfinv exp expm1 floor frac i0
isfinite isinf isnan isneginf isposinf isreal lgamma log log10 log1p log2 neg positive rad2deg reciprocal rsqrt sgn
sigmoid sign signbit sin sinc sinh sqrt square tan tanh trunc
"""
UNARY: dict[str, Callable[[Tensor], Tensor]] = {name: getattr(torch, name) for name in SAME.split()} | {
    "gammaln": torch.lgamma,
    "negative": torch.neg,
    "i0e": torch.special.i0e,
    "i1": torch.special.i1,
    "i1e": torch.special.i1e,
    "imag": lambda x: torch.imag(x),
    "real": lambda x: torch.real(x) if x.is_complex() else x,
}
BINARY: dict[str, tuple[Callable[..., Tensor], str]] = {
    "atan2": (torch.atan2, ""),
    "copysign": (torch.copysign, ""),
    "fmax": (torch.fmax, ""),
    "fmin": (torch.fmin, ""),
    "floor_divide": (torch.floor_divide, ""),
    "gammainc": (torch.special.gammainc, ""),
    "gammaincc": (torch.special.gammaincc, ""),
    "gcd": (torch.gcd, ""),
    "heaviside": (torch.heaviside, ""),
    "hypot": (torch.hypot, ""),
    "lcm": (torch.lcm, ""),
    "ldexp": (torch.ldexp, ""),
    "logaddexp": (torch.logaddexp, ""),
    "maximum": (torch.maximum, ""),
    "minimum": (torch.minimum, ""),
    "multiply": (torch.mul, "mul"),
    "nextafter": (torch.nextafter, ""),
    "remainder": (torch.remainder, "mod floor_mod"),
}
NEEDS_TENSORS = {
    "atan2",
    "copysign",
    "fmax",
    "fmin",
    "gcd",
    "heaviside",
    "hypot",
    "lcm",
    "logaddexp",
    "maximum",
    "minimum",
}


def _declare_unary(name: str, function: Callable[[Tensor], Tensor]) -> None:
    def call(x: Tensor) -> Tensor:
        return function(x)

    call.__name__ = name
    call.__doc__ = f"`{name}` of every element; x of any shape, the result of the same."
    api()(call)


def _declare_binary(name: str, function: Callable[..., Tensor], more: str) -> None:
    def call(x: Tensor, y: Any) -> Tensor:
        return function(x, y)

    def call_on_tensors(x: Tensor, y: Any) -> Tensor:
        return function(*as_tensors(x, y))

    made = call_on_tensors if name in NEEDS_TENSORS else call
    made.__name__ = name
    made.__doc__ = f"`{name}` of the elements of `x` and `y`, broadcast."
    api(more)(made)


def as_tensors(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Both as tensors; a number takes the dtype of the other one."""
    if not isinstance(x, Tensor):
        x = torch.as_tensor(x, dtype=y.dtype if isinstance(y, Tensor) else None)
    if not isinstance(y, Tensor):
        y = torch.as_tensor(y, dtype=x.dtype)
    return x, y


for _name, _function in UNARY.items():
    _declare_unary(_name, _function)
for _name, (_function, _more) in BINARY.items():
    _declare_binary(_name, _function, _more)


@api()
def add(x: Tensor, y: Any, *, alpha: Any = 1) -> Tensor:
    """`x + alpha·y`."""
    return torch.add(x, y) if alpha == 1 else torch.add(x, y, alpha=alpha)


@api("sub")
def subtract(x: Tensor, y: Any, *, alpha: Any = 1) -> Tensor:
    """`x - alpha·y`."""
    return torch.sub(x, y) if alpha == 1 else torch.sub(x, y, alpha=alpha)


@api("div true_divide")
def divide(x: Tensor, y: Any, *, rounding_mode: str | None = None) -> Tensor:
    """`x / y`, rounded by "trunc" or "floor" if asked. Integers give floats unless rounded."""
    return torch.div(x, y, rounding_mode=rounding_mode)


@api(y="exponent other")
def pow(x: Any, y: Any) -> Tensor:
    """`x ** y`. A float exponent of an integer tensor is truncated: the result keeps the dtype of `x`."""
    y = as_number(y) if isinstance(x, Tensor) and isinstance(y, Tensor) and y.ndim == 0 and y.dtype == x.dtype else y
    if isinstance(x, Tensor) and isinstance(y, float) and not (x.is_floating_point() or x.is_complex()):
        y = int(y)
    return torch.pow(x, y)


@api("clamp")
def clip(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """`x` limited to [min, max]; the bounds may be tensors."""
    if min is None and max is None:
        return x.clone()
    return torch.clamp(x, min, max)


@api()
def round(x: Tensor, decimals: int = 0) -> Tensor:
    """Round half to even, to `decimals` digits."""
    return torch.round(x, decimals=decimals) if decimals else torch.round(x)


@api()
def scale(
    x: Tensor, scale: Any = 1.0, bias: float = 0.0, bias_after_scale: bool = True, act: str | None = None
) -> Tensor:
    """`scale·x + bias`, or `scale·(x + bias)`; then the activation named by `act`."""
    factor = as_number(scale)
    if not (x.is_floating_point() or x.is_complex()):
        factor, bias = int(factor), int(bias)
    scaled = x * factor + bias if bias_after_scale else (x + bias) * factor
    return scaled if act is None else getattr(torch.nn.functional, act)(scaled)


@api()
def stanh(x: Tensor, scale_a: float = 0.67, scale_b: float = 1.7159) -> Tensor:
    """`scale_b · tanh(scale_a · x)`."""
    return scale_b * torch.tanh(scale_a * x)


@api(weight="")
def lerp(x: Tensor, y: Tensor, weight: Any) -> Tensor:
    """`x + weight·(y - x)`."""
    return torch.lerp(x, y, weight)


@api()
def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """`log(x / (1 - x))`, with `x` limited to [eps, 1 - eps] if given."""
    return torch.logit(x, eps or None)


@api()
def nan_to_num(x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """Replace NaN and infinities; by default with 0 and the largest finite values."""
    return torch.nan_to_num(x, nan, posinf, neginf)


@api()
def polygamma(x: Tensor, n: int) -> Tensor:
    """The n-th derivative of the digamma function."""
    return torch.polygamma(n, x)


@api()
def multigammaln(x: Tensor, p: int) -> Tensor:
    """Logarithm of the multivariate gamma function of dimension `p`."""
    return torch.special.multigammaln(x, p)


@api()
def frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """`x = mantissa · 2**exponent` with |mantissa| in [.5, 1); both in the dtype of `x`."""
    mantissa, exponent = torch.frexp(x)
    return mantissa, exponent.to(x.dtype)


@api()
def add_n(inputs: Any) -> Tensor:
    """The sum of the tensors of a list."""
    tensors = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total = total + tensor
    return total


@api()
def increment(x: Tensor, value: float = 1.0) -> Tensor:
    """Add `value` to the one element of `x`, in place."""
    return x.add_(value if x.is_floating_point() else int(value))


@api()
def multiplex(inputs: Sequence[Tensor], index: Tensor) -> Tensor:
    """Row `i` of the result is row `i` of `inputs[index[i]]`."""
    chosen = index.flatten().long()
    return torch.stack(list(inputs))[chosen, torch.arange(chosen.shape[0], device=chosen.device)]


@api(x="input", axis="dim")
def diff(x: Tensor, n: int = 1, axis: int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
    """The n-th difference along `axis`."""
    return torch.diff(x, n, axis, prepend, append)


@api(y="")
def trapezoid(y: Tensor, x: Tensor | None = None, dx: Any = None, axis: int = -1) -> Tensor:
    """The integral by the trapezoidal rule along `axis`, over the points `x` or steps `dx` (1)."""
    if x is not None:
        return torch.trapezoid(y, x, dim=axis)
    return torch.trapezoid(y, dim=axis) * (1.0 if dx is None else dx)


@api(y="")
def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, dx: Any = None, axis: int = -1) -> Tensor:
    """The running integral by the trapezoidal rule along `axis`."""
    if x is not None:
        return torch.cumulative_trapezoid(y, x, dim=axis)
    return torch.cumulative_trapezoid(y, dim=axis) * (1.0 if dx is None else dx)


@api("bitwise_invert")
def bitwise_not(x: Tensor, out: Tensor | None = None) -> Tensor:
    """`~x`."""
    return _into(torch.bitwise_not(x), out)


@api()
def bitwise_and(x: Tensor, y: Any, out: Tensor | None = None) -> Tensor:
    """`x & y`."""
    return _into(torch.bitwise_and(x, y), out)


@api()
def bitwise_or(x: Tensor, y: Any, out: Tensor | None = None) -> Tensor:
    """`x | y`."""
    return _into(torch.bitwise_or(x, y), out)


@api()
def bitwise_xor(x: Tensor, y: Any, out: Tensor | None = None) -> Tensor:
    """`x ^ y`."""
    return _into(torch.bitwise_xor(x, y), out)


@api()
def bitwise_left_shift(x: Tensor, y: Any, is_arithmetic: bool = True, out: Tensor | None = None) -> Tensor:
    """`x << y`."""
    return _into(torch.bitwise_left_shift(x, y), out)


@api()
def bitwise_right_shift(x: Tensor, y: Any, is_arithmetic: bool = True, out: Tensor | None = None) -> Tensor:
    """`x >> y`, keeping the sign, or filling with zeros if not `is_arithmetic`."""
    shifted = torch.bitwise_right_shift(x, y)
    if not is_arithmetic and x.dtype.is_signed:
        bits = torch.iinfo(x.dtype).bits
        y = torch.as_tensor(y, dtype=x.dtype, device=x.device)
        kept = ~torch.bitwise_left_shift(torch.full_like(shifted, -1), bits - y)
        shifted = torch.where(y == 0, x, shifted & torch.where(y >= bits, 0, kept))
    return _into(shifted, out)


def _into(result: Tensor, out: Tensor | None) -> Tensor:
    return result if out is None else write(result, out)
