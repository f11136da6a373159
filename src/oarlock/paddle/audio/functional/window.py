"""Windows: `get_window` by name, and the five that are functions of the root namespace.

A symmetric window has M points; a periodic one is the first M of the symmetric window of M + 1 points.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import DTypeLike, as_device, as_dtype
from oarlock.paddle.tensors.creation import finish

AT = "paddle.audio.functional"
BLACKMAN = (0.42, 0.50, 0.08)
NUTTALL = (0.3635819, 0.4891775, 0.1365995, 0.0106411)


def _points(size: int) -> Tensor:
    return torch.arange(size, dtype=torch.float64)


def _cosines(size: int, weights: Any) -> Tensor:
    """`sum_k w_k cos(k·x)` for x from -pi to pi."""
    x = torch.linspace(-math.pi, math.pi, size, dtype=torch.float64)
    return torch.stack([float(weight) * torch.cos(k * x) for k, weight in enumerate(weights)]).sum(0)


def _hamming(size: int, alpha: float = 0.54) -> Tensor:
    return _cosines(size, (alpha, 1 - alpha))


def _gaussian(size: int, std: float) -> Tensor:
    return _general_gaussian(size, 1.0, std)


def _general_gaussian(size: int, p: float, sig: float) -> Tensor:
    return torch.exp(-0.5 * ((_points(size) - (size - 1) / 2) / sig).abs() ** (2 * p))


def _exponential(size: int, center: float | None = None, tau: float = 1.0) -> Tensor:
    middle = (size - 1) / 2 if center is None else center
    return torch.exp(-(_points(size) - middle).abs() / tau)


def _triang(size: int) -> Tensor:
    distance = (2 * _points(size) - (size - 1)).abs()
    return 1 - distance / (size if size % 2 == 0 else size + 1)


def _bartlett(size: int) -> Tensor:
    return 1 - (2 * _points(size) / (size - 1) - 1).abs()


def _bohman(size: int) -> Tensor:
    x = torch.linspace(-1, 1, size, dtype=torch.float64).abs()
    made = (1 - x) * torch.cos(math.pi * x) + torch.sin(math.pi * x) / math.pi
    made[[0, -1]] = 0
    return made


def _cosine(size: int) -> Tensor:
    return torch.sin(math.pi / size * (_points(size) + 0.5))


def _tukey(size: int, alpha: float = 0.5) -> Tensor:
    if alpha <= 0:
        return torch.ones(size, dtype=torch.float64)
    edge = torch.minimum(_points(size), size - 1 - _points(size))  # the distance to the nearer end
    rise = 0.5 * (1 + torch.cos(math.pi * (2 * edge / (min(alpha, 1.0) * (size - 1)) - 1)))
    return torch.where(edge <= int(min(alpha, 1.0) * (size - 1) / 2), rise, 1.0)


def _taylor(size: int, nbar: int = 4, sll: float = 30, norm: bool = True) -> Tensor:
    """The Taylor window: side lobes `sll` decibels below, `nbar` of them at that level."""
    a = math.acosh(10 ** (sll / 20)) / math.pi
    sigma2 = nbar**2 / (a**2 + (nbar - 0.5) ** 2)
    orders = range(1, nbar)

    def weight(m: int) -> float:
        top = math.prod(1 - m**2 / sigma2 / (a**2 + (k - 0.5) ** 2) for k in orders)
        return (-1) ** (m + 1) * top / (2 * math.prod(1 - m**2 / k**2 for k in orders if k != m))

    def at(n: Tensor) -> Tensor:
        terms = [2 * weight(m) * torch.cos(2 * math.pi * m * (n - size / 2 + 0.5) / size) for m in orders]
        return 1 + torch.stack(terms).sum(0)

    made = at(_points(size))
    return made / at(torch.tensor((size - 1) / 2, dtype=torch.float64)) if norm else made


def _kaiser(size: int, beta: float) -> Tensor:
    x = 2 * _points(size) / (size - 1) - 1
    top = torch.special.i0(beta * torch.sqrt((1 - x**2).clamp(min=0)))
    return top / torch.special.i0(torch.tensor(float(beta), dtype=torch.float64))


WINDOWS: dict[str, Callable[..., Tensor]] = {
    "bartlett": _bartlett,
    "blackman": lambda size: _cosines(size, BLACKMAN),
    "bohman": _bohman,
    "cosine": _cosine,
    "exponential": _exponential,
    "gaussian": _gaussian,
    "general_cosine": _cosines,
    "general_gaussian": _general_gaussian,
    "general_hamming": _hamming,
    "hamming": _hamming,
    "hann": lambda size: _hamming(size, 0.5),
    "kaiser": _kaiser,
    "nuttall": lambda size: _cosines(size, NUTTALL),
    "taylor": _taylor,
    "triang": _triang,
    "tukey": _tukey,
}


@api(at=AT, out=False)
def get_window(window: Any, win_length: int, fftbins: bool = True, dtype: DTypeLike = "float64") -> Tensor:
    """A window by its name, or by a tuple of its name and parameters: `("gaussian", 7)`.

    Args:
        window: one of bartlett, blackman, bohman, cosine, exponential (center, tau), gaussian (std), general_gaussian
            (power, sig), hamming, hann, kaiser (beta), nuttall, taylor (nbar, sll), triang, tukey (alpha).
        win_length: the number of points.
        fftbins: periodic, for a spectrum; else symmetric.
    """
    name, *parameters = window if isinstance(window, (tuple, list)) else (window,)
    if name not in WINDOWS:
        raise ValueError(f"unknown window {name!r}; known are {', '.join(WINDOWS)}")
    if win_length <= 1:
        return torch.ones(win_length, dtype=as_dtype(dtype))
    return WINDOWS[name](win_length + fftbins, *parameters)[:win_length].to(as_dtype(dtype))


@api(out=False)
def hamming_window(
    window_length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    *,
    dtype: DTypeLike = "float32",
    layout: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:
    """`alpha - beta·cos(2·pi·n/N)`."""
    made = alpha + beta * (get_window("hamming", window_length, periodic) - 0.54) / 0.46
    return finish(made.to(as_dtype(dtype)).to(as_device(device)), requires_grad, pin_memory)


@api(out=False)
def kaiser_window(
    window_length: int,
    periodic: bool = True,
    beta: float = 12.0,
    *,
    dtype: DTypeLike = "float32",
    layout: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:
    """`I0(beta·sqrt(1 - (2n/N - 1)^2)) / I0(beta)`."""
    made = get_window(("kaiser", beta), window_length, periodic, dtype)
    return finish(made.to(as_device(device)), requires_grad, pin_memory)


def _declare(name: str, formula: str) -> None:
    def call(
        window_length: int,
        periodic: bool = True,
        *,
        dtype: DTypeLike = "float32",
        layout: Any = None,
        device: Any = None,
        pin_memory: bool = False,
        requires_grad: bool = False,
    ) -> Tensor:
        made = get_window(name, window_length, periodic, dtype)
        return finish(made.to(as_device(device)), requires_grad, pin_memory)

    call.__name__, call.__doc__ = f"{name}_window", f"`{formula}`."
    api(out=False)(call)


_declare("hann", "(1 - cos(2·pi·n/N)) / 2")
_declare("blackman", "0.42 - 0.5·cos(2·pi·n/N) + 0.08·cos(4·pi·n/N)")
_declare("bartlett", "1 - |2n/N - 1|")
