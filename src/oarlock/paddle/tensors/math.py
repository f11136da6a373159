"""Elementwise arithmetic. Function by function as torch's unless the docstring says otherwise."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import as_number
from oarlock.paddle.tensors.binary import is_inexact

SAME = """
abs acos acosh angle asin asinh atan atanh ceil conj cos cosh digamma erf erfinv exp expm1 floor i0
isfinite isinf isnan isneginf isposinf isreal lgamma log log10 log1p log2 neg positive reciprocal rsqrt
sigmoid signbit sin sinc sinh sqrt square tan tanh trunc
"""
UNARY: dict[str, Callable[[Tensor], Tensor]] = {name: getattr(torch, name) for name in SAME.split()} | {
    "gammaln": torch.lgamma,
    "negative": torch.neg,
    "i0e": torch.special.i0e,
    "i1": torch.special.i1,
    "i1e": torch.special.i1e,
    "imag": lambda x: torch.imag(x),
    "real": lambda x: torch.real(x) if x.is_complex() else x,
    "deg2rad": lambda x: x * (math.pi / 180) if x.is_complex() else torch.deg2rad(x),
    "rad2deg": lambda x: x * (180 / math.pi) if x.is_complex() else torch.rad2deg(x),
    "frac": lambda x: torch.frac(x) if x.is_floating_point() else torch.zeros_like(x),
    "sgn": lambda x: torch.sgn(x) if x.is_complex() else sign(x),
    "sign": lambda x: torch.sgn(x) if x.is_complex() else sign(x),
}


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1; NaN stays NaN, where torch gives 0."""
    return torch.where(x.isnan(), x, torch.sign(x)) if x.is_floating_point() else torch.sign(x)


def _declare_unary(name: str, function: Callable[[Tensor], Tensor]) -> None:
    def call(x: Tensor) -> Tensor:
        return function(x)

    call.__name__ = name
    call.__doc__ = f"`{name}` of every element; x of any shape, the result of the same."
    api()(call)


for _name, _function in UNARY.items():
    _declare_unary(_name, _function)


@api("clamp")
def clip(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """`x` limited to [min, max]; the bounds may be tensors, of which those of integers keep the dtype of `x`."""
    if min is None and max is None:
        return x.clone()
    return torch.clamp(x, _bound(x, min), _bound(x, max))


def _bound(x: Tensor, bound: Any) -> Any:
    if not isinstance(bound, Tensor):
        return as_number(bound)
    if bound.numel() == 1 and not bound.requires_grad:
        return bound.item()
    return bound.to(x.dtype) if not is_inexact(bound) else bound


@api()
def round(x: Tensor, decimals: int = 0) -> Tensor:
    """Round half to even, to `decimals` digits; of complex numbers both parts."""
    if x.is_complex():
        return torch.complex(round(x.real, decimals), round(x.imag, decimals))
    return torch.round(x, decimals=decimals) if decimals and x.is_floating_point() else torch.round(x)


@api()
def scale(
    x: Tensor, scale: Any = 1.0, bias: float = 0.0, bias_after_scale: bool = True, act: str | None = None
) -> Tensor:
    """`scale·x + bias`, or `scale·(x + bias)`; then the activation named by `act`."""
    factor = as_number(scale)
    if not (x.is_floating_point() or x.is_complex()):
        factor, bias = int(factor), int(bias)
    scaled = x * factor + bias if bias_after_scale else (x + bias) * factor
    scaled = scaled.to(x.dtype)
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
        if dx is not None:
            raise ValueError("give the points x or the steps dx, not both")
        return torch.trapezoid(y, x, dim=axis)
    return _areas(y, dx, axis).sum(axis)


@api(y="")
def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, dx: Any = None, axis: int = -1) -> Tensor:
    """The running integral by the trapezoidal rule along `axis`."""
    if x is not None:
        if dx is not None:
            raise ValueError("give the points x or the steps dx, not both")
        return torch.cumulative_trapezoid(y, x, dim=axis)
    return _areas(y, dx, axis).cumsum(axis)


def _areas(y: Tensor, dx: Any, axis: int) -> Tensor:
    count = y.shape[axis] - 1
    return (y.narrow(axis, 0, count) + y.narrow(axis, 1, count)) * (1.0 if dx is None else dx) / 2.0
