"""First values of parameters. An initialiser is called with the tensor that it fills, in place.

A weight of two dimensions is [in, out] here, so that its fans are (shape[0], shape[1]); one of a convolution is
[out, in, *kernel]: fan_in = in * prod(kernel), fan_out = out * prod(kernel).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oarlock.paddle.nn.init import calculate_gain

__all__ = [
    "Assign",
    "Bilinear",
    "Constant",
    "Dirac",
    "Initializer",
    "KaimingNormal",
    "KaimingUniform",
    "Normal",
    "Orthogonal",
    "TruncatedNormal",
    "Uniform",
    "XavierNormal",
    "XavierUniform",
    "calculate_gain",
    "set_global_initializer",
]


class Initializer:
    """Fills a tensor when called with it."""

    def fill(self, tensor: Tensor) -> None:
        """What subclasses do."""
        raise NotImplementedError

    def __call__(self, param: Tensor, block: Any = None) -> Tensor:
        """Fill `param` and return it."""
        with torch.no_grad():
            self.fill(param)
        return param


def fans(tensor: Tensor) -> tuple[int, int]:
    """(fan_in, fan_out)."""
    shape = tensor.shape
    if len(shape) < 2:
        size = shape[0] if len(shape) else 1
        return size, size
    if len(shape) == 2:
        return shape[0], shape[1]
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


class Constant(Initializer):
    """One value everywhere."""

    def __init__(self, value: float = 0.0) -> None:
        self.value = value

    def fill(self, tensor: Tensor) -> None:
        """Fill."""
        tensor.fill_(self.value)


class Normal(Initializer):
    """A normal distribution."""

    def __init__(self, mean: float = 0.0, std: float = 1.0, name: str | None = None) -> None:
        self.mean, self.std = mean, std

    def fill(self, tensor: Tensor) -> None:
        """Draw."""
        tensor.normal_(self.mean, self.std)


class TruncatedNormal(Initializer):
    """A normal distribution cut at `mean + a * std` and `mean + b * std`."""

    def __init__(
        self, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, name: str | None = None
    ) -> None:
        self.mean, self.std, self.a, self.b = mean, std, a, b

    def fill(self, tensor: Tensor) -> None:
        """Draw."""
        low, high = self.mean + self.a * self.std, self.mean + self.b * self.std
        torch.nn.init.trunc_normal_(tensor, self.mean, self.std, low, high)


class Uniform(Initializer):
    """A uniform distribution on [low, high)."""

    def __init__(self, low: float = -1.0, high: float = 1.0, name: str | None = None) -> None:
        self.low, self.high = low, high

    def fill(self, tensor: Tensor) -> None:
        """Draw."""
        tensor.uniform_(self.low, self.high)


class _Xavier(Initializer):
    def __init__(
        self, fan_in: float | None = None, fan_out: float | None = None, gain: float = 1.0, name: str | None = None
    ) -> None:
        self.fan_in, self.fan_out, self.gain = fan_in, fan_out, gain

    def std(self, tensor: Tensor) -> float:
        """gain * sqrt(2 / (fan_in + fan_out))."""
        found_in, found_out = fans(tensor)
        total = (found_in if self.fan_in is None else self.fan_in) + (
            found_out if self.fan_out is None else self.fan_out
        )
        return self.gain * math.sqrt(2.0 / total) if total else 0.0


class XavierNormal(_Xavier):
    """Normal with std = gain * sqrt(2 / (fan_in + fan_out)). Source: Glorot and Bengio, 2010."""

    def fill(self, tensor: Tensor) -> None:
        """Draw."""
        tensor.normal_(0.0, self.std(tensor))


class XavierUniform(_Xavier):
    """Uniform with limit gain * sqrt(6 / (fan_in + fan_out)). Source: Glorot and Bengio, 2010."""

    def fill(self, tensor: Tensor) -> None:
        """Draw."""
        limit = math.sqrt(3.0) * self.std(tensor)
        tensor.uniform_(-limit, limit)


class _Kaiming(Initializer):
    def __init__(
        self,
        fan_in: float | None = None,
        negative_slope: float = 0.0,
        nonlinearity: str = "relu",
        mode: str = "fan_in",
    ) -> None:
        if mode not in ("fan_in", "fan_out"):
            raise ValueError(f"mode = {mode!r}: 'fan_in' or 'fan_out'")
        self.fan, self.slope, self.nonlinearity, self.mode = fan_in, negative_slope, nonlinearity, mode

    def std(self, tensor: Tensor) -> float:
        """gain(nonlinearity) / sqrt(fan)."""
        fan = self.fan if self.fan is not None else fans(tensor)[self.mode == "fan_out"]
        return calculate_gain(self.nonlinearity, self.slope) / math.sqrt(fan) if fan else 0.0


class KaimingNormal(_Kaiming):
    """Normal with std = gain / sqrt(fan). Source: He et al., 2015."""

    def fill(self, tensor: Tensor) -> None:
        """Draw."""
        tensor.normal_(0.0, self.std(tensor))


class KaimingUniform(_Kaiming):
    """Uniform with limit gain * sqrt(3 / fan). Source: He et al., 2015."""

    def fill(self, tensor: Tensor) -> None:
        """Draw."""
        limit = math.sqrt(3.0) * self.std(tensor)
        tensor.uniform_(-limit, limit)


class Assign(Initializer):
    """Given values: an array, a list or a tensor."""

    def __init__(self, value: Any, name: str | None = None) -> None:
        self.value = value

    def fill(self, tensor: Tensor) -> None:
        """Copy."""
        value = self.value if isinstance(self.value, Tensor) else torch.as_tensor(np.asarray(self.value))
        tensor.copy_(value.reshape(tensor.shape))


class Orthogonal(Initializer):
    """Rows, or columns where these are fewer, that are orthonormal, times `gain`; QR of normal draws."""

    def __init__(self, gain: float = 1.0, name: str | None = None) -> None:
        self.gain = gain

    def fill(self, tensor: Tensor) -> None:
        """Draw."""
        torch.nn.init.orthogonal_(tensor, self.gain)


class Dirac(Initializer):
    """Convolutions that pass their input on: 1 in the kernel's middle where the channels are equal."""

    def __init__(self, groups: int = 1, name: str | None = None) -> None:
        self.groups = groups

    def fill(self, tensor: Tensor) -> None:
        """Fill."""
        torch.nn.init.dirac_(tensor, self.groups)


class Bilinear(Initializer):
    """Transposed convolutions that enlarge bilinearly."""

    def __init__(self, name: str | None = None) -> None:
        pass

    def fill(self, tensor: Tensor) -> None:
        """Fill.

        Raises:
            ValueError: not four dimensions with a square kernel.
        """
        if tensor.ndim != 4 or tensor.shape[2] != tensor.shape[3]:
            raise ValueError(f"Bilinear fills [out, in, k, k], got {list(tensor.shape)}")
        size = tensor.shape[3]
        factor = math.ceil(size / 2.0)
        middle = (2 * factor - 1 - factor % 2) / (2.0 * factor)
        line = 1 - (torch.arange(size, dtype=torch.float64) / factor - middle).abs()
        tensor.copy_(torch.outer(line, line).to(tensor.dtype).expand(tensor.shape))


_global: dict[str, Callable[[Tensor], Any] | None] = {"weight": None, "bias": None}


def set_global_initializer(
    weight_init: Callable[[Tensor], Any] | None, bias_init: Callable[[Tensor], Any] | None = None
) -> None:
    """What fills parameters whose layers say nothing; None for the usual."""
    _global.update(weight=weight_init, bias=bias_init)


def default_initializer(is_bias: bool) -> Callable[[Tensor], Any]:
    """Zeros for biases, XavierUniform for weights, or what `set_global_initializer` says."""
    return _global["bias" if is_bias else "weight"] or (Constant(0.0) if is_bias else XavierUniform())
