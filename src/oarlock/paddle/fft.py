"""`paddle.fft`: discrete Fourier transforms."""

from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api, exports
from oarlock.paddle.dtypes import DTypeLike, as_device, as_dims, as_dtype
from oarlock.paddle.tensors.creation import finish

AT = "paddle.fft"


def _transform(name: str, x: Tensor, sizes: Any, axes: Any, norm: str) -> Tensor:
    """torch's transform; of nothing, zeros of its shape, for which the libraries have no plan."""
    kind = name.removesuffix("n")
    back = kind in ("irfft", "hfft")  # from half a spectrum: the last length doubles
    every = range(-x.ndim if sizes is None or isinstance(sizes, int) else -len(sizes), 0)
    dims = [axes] if isinstance(axes, int) else list(every if axes is None else axes)
    if x.numel() and not (back and sizes is None and dims and x.shape[dims[-1]] == 1):
        return getattr(torch.fft, name)(x, sizes, axes, norm)
    lengths = [x.shape[dim] for dim in dims] if sizes is None else [sizes] if isinstance(sizes, int) else sizes
    shape = list(x.shape)
    for dim, length in zip(dims, lengths, strict=True):
        shape[dim] = length
    if kind in ("rfft", "ihfft"):
        shape[dims[-1]] = shape[dims[-1]] // 2 + 1
    elif back and sizes is None:
        shape[dims[-1]] = max(2 * (x.shape[dims[-1]] - 1), 0)
    inexact = x.is_floating_point() or x.is_complex()
    real = x.real.dtype if inexact else torch.get_default_dtype()
    zeros = torch.zeros(shape, dtype=real if back else real.to_complex(), device=x.device)
    return zeros + (x.real.sum() if inexact else 0)  # for the gradient's record


def _declare_line(name: str) -> None:
    def call(x: Tensor, n: int | None = None, axis: int | None = -1, norm: str = "backward") -> Tensor:
        return _transform(name, x, n, -1 if axis is None else int(axis), norm)

    call.__name__, call.__doc__ = name, f"`{name}` along one dimension, of length `n`."
    api(at=AT)(call)


def _declare_plane(name: str) -> None:
    def call(x: Tensor, s: Any = None, axes: Any = (-2, -1), norm: str = "backward") -> Tensor:
        return _transform(name[:-1] + "n", x, as_dims(s), as_dims(axes), norm)

    call.__name__, call.__doc__ = name, f"`{name}` over two dimensions, of lengths `s`."
    api(at=AT, axes="dim")(call)


def _declare_block(name: str) -> None:
    def call(x: Tensor, s: Any = None, axes: Any = None, norm: str = "backward") -> Tensor:
        return _transform(name, x, as_dims(s), as_dims(axes), norm)

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
