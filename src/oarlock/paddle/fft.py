"""`paddle.fft`: discrete Fourier transforms."""

from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api, exports
from oarlock.paddle.dtypes import DTypeLike, as_device, as_dims, as_dtype
from oarlock.paddle.tensors.creation import finish

AT = "paddle.fft"


def _declare_line(name: str) -> None:
    function = getattr(torch.fft, name)

    def call(x: Tensor, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
        return function(x, n, axis, norm)

    call.__name__, call.__doc__ = name, f"`{name}` along one dimension, of length `n`."
    api(at=AT)(call)


def _declare_plane(name: str) -> None:
    function = getattr(torch.fft, name)

    def call(x: Tensor, s: Any = None, axes: Any = (-2, -1), norm: str = "backward") -> Tensor:
        return function(x, as_dims(s), as_dims(axes), norm)

    call.__name__, call.__doc__ = name, f"`{name}` over two dimensions, of lengths `s`."
    api(at=AT, axes="dim")(call)


def _declare_block(name: str) -> None:
    function = getattr(torch.fft, name)

    def call(x: Tensor, s: Any = None, axes: Any = None, norm: str = "backward") -> Tensor:
        return function(x, as_dims(s), as_dims(axes), norm)

    call.__name__, call.__doc__ = name, f"`{name}` over several dimensions (all), of lengths `s`."
    api(at=AT, axes="dim")(call)


for _kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
    _declare_line(_kind)
    _declare_plane(f"{_kind}2")
    _declare_block(f"{_kind}n")


@api(at=AT)
def fftfreq(
    n: int, d: float = 1.0, dtype: DTypeLike | None = None, *, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """The frequencies of the bins of `fft` for step `d`."""
    return finish(torch.fft.fftfreq(n, d, dtype=as_dtype(dtype), device=as_device(device)), requires_grad)


@api(at=AT)
def rfftfreq(
    n: int, d: float = 1.0, dtype: DTypeLike | None = None, *, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """The frequencies of the bins of `rfft` for step `d`."""
    return finish(torch.fft.rfftfreq(n, d, dtype=as_dtype(dtype), device=as_device(device)), requires_grad)


@api(at=AT, axes="dim")
def fftshift(x: Tensor, axes: Any = None) -> Tensor:
    """The zero frequency moved to the middle."""
    return torch.fft.fftshift(x, as_dims(axes))


@api(at=AT, axes="dim")
def ifftshift(x: Tensor, axes: Any = None) -> Tensor:
    """The inverse of `fftshift`."""
    return torch.fft.ifftshift(x, as_dims(axes))


globals().update(exports(AT))
