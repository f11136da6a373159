"""`paddle.nn.init`: initialisers that fill a tensor in place and return it.

The fans of a matrix are (rows, columns), for weights are [in, out]: torch's are the other way round.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import init as _init

from oarlock.paddle.declare import api, exports

AT = "paddle.nn.init"


def _fans(tensor: Tensor) -> tuple[int, int]:
    if tensor.ndim < 2:
        size = tensor.shape[0] if tensor.ndim else 1
        return size, size
    if tensor.ndim == 2:
        return tensor.shape[0], tensor.shape[1]
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


@api(at=AT, out=False)
def calculate_gain(nonlinearity: str, param: Any = None) -> float:
    """The gain that keeps the variance through a nonlinearity."""
    name = "linear" if nonlinearity.startswith("conv") else nonlinearity
    return _init.calculate_gain(name, None if param is None else float(param))  # type: ignore[arg-type]


@api(at=AT, out=False)
@torch.no_grad()
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Uniform values in [a, b)."""
    return tensor.uniform_(a, b)


@api(at=AT, out=False)
@torch.no_grad()
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normal values."""
    return tensor.normal_(mean, std)


@api(at=AT, out=False)
def trunc_normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0) -> Tensor:
    """Normal values between a and b."""
    return _init.trunc_normal_(tensor, mean, std, a, b)


@api(at=AT, out=False)
@torch.no_grad()
def constant_(tensor: Tensor, val: float) -> Tensor:
    """One value."""
    return tensor.fill_(val)


@api(at=AT, out=False)
@torch.no_grad()
def ones_(tensor: Tensor) -> Tensor:
    """Ones."""
    return tensor.fill_(1.0)


@api(at=AT, out=False)
@torch.no_grad()
def zeros_(tensor: Tensor) -> Tensor:
    """Zeros."""
    return tensor.zero_()


@api(at=AT, out=False)
def eye_(tensor: Tensor) -> Tensor:
    """Ones on the diagonal of a matrix."""
    return _init.eye_(tensor)


@api(at=AT, out=False)
def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """A convolution that leaves its input as it is."""
    return _init.dirac_(tensor, groups)


@api(at=AT, out=False)
def orthogonal_(tensor: Tensor, gain: float = 1) -> Tensor:
    """Orthogonal rows or columns."""
    return _init.orthogonal_(tensor, gain)


def _xavier(tensor: Tensor, gain: float, fan_in: float | None, fan_out: float | None) -> float:
    found = _fans(tensor)
    total = (found[0] if fan_in is None else fan_in) + (found[1] if fan_out is None else fan_out)
    return gain * math.sqrt(2.0 / total)


@api(at=AT, out=False)
def xavier_uniform_(
    tensor: Tensor, gain: float = 1.0, fan_in: float | None = None, fan_out: float | None = None
) -> Tensor:
    """Uniform values of deviation `gain·sqrt(2 / (fan_in + fan_out))`."""
    bound = math.sqrt(3.0) * _xavier(tensor, gain, fan_in, fan_out)
    return uniform_(tensor, -bound, bound)


@api(at=AT, out=False)
def xavier_normal_(
    tensor: Tensor, gain: float = 1.0, fan_in: float | None = None, fan_out: float | None = None
) -> Tensor:
    """Normal values of deviation `gain·sqrt(2 / (fan_in + fan_out))`."""
    return normal_(tensor, 0.0, _xavier(tensor, gain, fan_in, fan_out))


def _kaiming(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"mode must be 'fan_in' or 'fan_out', not {mode!r}")
    return calculate_gain(nonlinearity, a) / math.sqrt(_fans(tensor)[mode == "fan_out"])


@api(at=AT, out=False)
def kaiming_uniform_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Tensor:
    """Uniform values of deviation `gain / sqrt(fan)`."""
    bound = math.sqrt(3.0) * _kaiming(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


@api(at=AT, out=False)
def kaiming_normal_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Tensor:
    """Normal values of deviation `gain / sqrt(fan)`."""
    return normal_(tensor, 0.0, _kaiming(tensor, a, mode, nonlinearity))


globals().update(exports(AT))
