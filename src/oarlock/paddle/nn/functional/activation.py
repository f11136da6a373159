"""Activations."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock import ops
from oarlock.paddle.declare import REGISTRY, api
from oarlock.paddle.dtypes import DTypeLike, as_dtype

AT = "paddle.nn.functional"
SIMPLE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "softsign": F.softsign,
    "swish": F.silu,
    "tanhshrink": F.tanhshrink,
    "hardswish": F.hardswish,
    "mish": F.mish,
}


def _declare(name: str, function: Callable[[Tensor], Tensor]) -> None:
    def call(x: Tensor) -> Tensor:
        return function(x)

    call.__name__, call.__doc__ = name, f"`{name}` of every element."
    api(at=AT)(call)


for _name, _function in SIMPLE.items():
    _declare(_name, _function)


@api(at=AT)
def gelu(x: Tensor, approximate: Any = False) -> Tensor:
    """The Gaussian error linear unit; `approximate` is a bool, "none" or "tanh"."""
    if isinstance(approximate, str):
        return F.gelu(x, approximate=approximate)
    return F.gelu(x, approximate="tanh" if approximate else "none")


@api(at=AT)
def silu(x: Tensor, inplace: bool = False) -> Tensor:
    """`x·sigmoid(x)`."""
    if x.is_complex():  # torch has no gradient of its complex kernel
        return x * torch.sigmoid(x)
    return F.silu(x, inplace)


@api("logsigmoid", at=AT)
def log_sigmoid(x: Tensor) -> Tensor:
    """`-log(1 + exp(-x))`."""
    return -torch.log1p(torch.exp(-x)) if x.is_complex() else F.logsigmoid(x)


@api(
    "paddle.softmax paddle.Tensor.softmax paddle.special.softmax",
    bare=True,
    compat="axis x",
    instead="paddle.nn.functional.softmax",
)
def root_softmax(input: Tensor, dim: int | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """`exp(input) / sum(exp(input))` along `dim`: 0 for 0, 1 or 3 dimensions and 1 otherwise where it is None."""
    if dim is None:
        dim = 0 if input.ndim in (0, 1, 3) else 1
    return torch.softmax(input, dim, dtype=as_dtype(dtype))


@api(at=AT)
def softmax(x: Tensor, axis: int = -1, dtype: DTypeLike | None = None) -> Tensor:
    """`exp(x) / sum(exp(x))` along `axis`."""
    return torch.softmax(x, axis, dtype=as_dtype(dtype))


@api(at=AT)
def log_softmax(x: Tensor, axis: int = -1, dtype: DTypeLike | None = None) -> Tensor:
    """The logarithm of `softmax`."""
    return torch.log_softmax(x, axis, dtype=as_dtype(dtype))


@api(at=AT, temperature="tau")
def gumbel_softmax(x: Tensor, temperature: float = 1.0, hard: bool = False, axis: int = -1) -> Tensor:
    """A sample of the Gumbel-softmax distribution."""
    return F.gumbel_softmax(x, temperature, hard, dim=axis) if x.numel() else x.clone()


@api(at=AT)
def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """`x` where positive, else `alpha·(exp(x) - 1)`."""
    return F.elu(x, alpha)


@api(at=AT)
def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """`max(0, x) + min(0, alpha·(exp(x/alpha) - 1))`."""
    return F.celu(x, alpha)


@api(at=AT)
def selu(x: Tensor, scale: float = 1.0507009873554805, alpha: float = 1.6732632423543772) -> Tensor:
    """`scale·elu(x, alpha)`."""
    return scale * torch.where(x > 0, x, alpha * torch.expm1(x.clamp(max=0)))


@api(at=AT)
def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """`x` where positive, else `negative_slope·x`."""
    return F.leaky_relu(x, negative_slope)


@api(at=AT, threshold="lambd")
def hardshrink(x: Tensor, threshold: float = 0.5) -> Tensor:
    """`x` where |x| > threshold, else 0."""
    return F.hardshrink(x, threshold)


@api(at=AT, threshold="lambd")
def softshrink(x: Tensor, threshold: float = 0.5) -> Tensor:
    """`x` moved towards 0 by `threshold`."""
    return F.softshrink(x, threshold)


@api(at=AT, min="min_val", max="max_val")
def hardtanh(x: Tensor, min: float = -1.0, max: float = 1.0) -> Tensor:
    """`x` limited to [min, max]."""
    return F.hardtanh(x, min, max)


@api(at=AT)
def hardsigmoid(x: Tensor, slope: float = 0.1666667, offset: float = 0.5) -> Tensor:
    """`slope·x + offset`, limited to [0, 1]."""
    return torch.clamp(slope * x + offset, 0.0, 1.0)


@api(at=AT)
def thresholded_relu(x: Tensor, threshold: float = 1.0, value: float = 0.0) -> Tensor:
    """`x` where above `threshold`, else `value`."""
    return torch.where(x > threshold, x, value)


@api(at=AT)
def softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """`log(1 + exp(beta·x)) / beta`, linear above `threshold`."""
    if x.is_complex():
        return torch.where((beta * x).real > threshold, x, torch.log1p(torch.exp(beta * x)) / beta)
    return F.softplus(x, beta, threshold)


@api(at=AT)
def prelu(x: Tensor, weight: Tensor, data_format: str = "NCHW") -> Tensor:
    """`x` where positive, else `weight·x`; one weight, or one per channel."""
    if weight.numel() > 1 and not data_format.startswith("NC"):
        return torch.where(x > 0, x, weight * x)
    return F.prelu(x, weight.flatten())


@api(at=AT)
def rrelu(x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = True) -> Tensor:
    """`x` where positive, else a random (when not training: the mean) slope times `x`."""
    if not training:
        return F.leaky_relu(x, (lower + upper) / 2)
    slope = torch.empty_like(x, dtype=torch.float32).uniform_(lower, upper).to(x.dtype)
    return torch.where(x >= 0, x, slope * x)


@api(at=AT)
def glu(x: Tensor, axis: int = -1) -> Tensor:
    """The first half times the sigmoid of the second."""
    return F.glu(x, axis)


@api(at=AT)
def maxout(x: Tensor, groups: int, axis: int = 1) -> Tensor:
    """The largest of every `groups` channels that lie next to each other."""
    return x.unflatten(axis, (x.shape[axis] // groups, groups)).amax(axis % x.ndim + 1)


@api("paddle.incubate.nn.functional.swiglu", at=AT)
def swiglu(x: Tensor, y: Tensor | None = None) -> Tensor:
    """`silu(x)·y`; without `y`, of the two halves of the last dimension."""
    if y is None:
        x, y = x.chunk(2, -1)
    return ops.swiglu(x, y)


def _declare_inplace(name: str) -> None:
    function = REGISTRY[f"{AT}.{name}"].implementation

    def call(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        source = x.clone() if torch.is_grad_enabled() and x.requires_grad else x  # what the gradient needs of x
        return x.copy_(function(source, *args, **kwargs))

    call.__name__, call.__doc__ = f"{name}_", f"`{name}` in place."
    call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    api(at=AT, out=False)(call)


for _name in ("relu", "elu", "hardtanh", "leaky_relu", "softmax", "thresholded_relu"):
    _declare_inplace(_name)
