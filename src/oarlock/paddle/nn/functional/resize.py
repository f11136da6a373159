"""Padding, resizing and sampling of images."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import as_ints, as_number
from oarlock.paddle.nn.functional.extents import AT, channels_back, channels_first

SMOOTH = ("linear", "bilinear", "trilinear")


@api(at=AT)
def pad(
    x: Tensor,
    pad: Any,
    mode: str = "constant",
    value: float = 0.0,
    data_format: str | None = None,
    pad_from_left_axis: bool = True,
) -> Tensor:
    """Pad `x`.

    A list of 2·ndim numbers starts at the first dimension (at the last one if not `pad_from_left_axis`). A shorter one
    starts at the last dimension, as torch's; if it covers exactly the spatial dimensions of `data_format`, at the last
    of these.
    """
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise ValueError(f"mode must be 'constant', 'reflect', 'replicate' or 'circular', not {mode!r}")
    is_tensor, spatial = isinstance(pad, Tensor), 2 * (x.ndim - 2)
    sizes = as_ints(pad)
    sizes = sizes * spatial if not isinstance(pad, (Sequence, Tensor)) else sizes
    if not any(sizes):
        return x.clone()
    if mode == "constant" and not is_tensor and len(sizes) != spatial:
        if len(sizes) == 2 * x.ndim and pad_from_left_axis:
            sizes = [n for i in range(len(sizes) - 2, -1, -2) for n in sizes[i : i + 2]]
        return F.pad(x, sizes, value=as_number(value))
    layout = data_format or "NC"
    fill = as_number(value) if mode == "constant" else None
    return channels_back(_pad_images(channels_first(x, layout), sizes, mode, fill), layout)


def _pad_images(x: Tensor, sizes: list[int], mode: str, value: float | None) -> Tensor:
    if mode == "constant" or (len(sizes) == 2 * (x.ndim - 2) and x.is_floating_point() and min(sizes) >= 0):
        return F.pad(x, sizes, mode, value)
    # torch's other modes want all spatial dimensions and a floating dtype: indices do the same.
    for place, dim in zip(range(0, len(sizes), 2), range(x.ndim - 1, 1, -1), strict=False):
        before, after = sizes[place : place + 2]
        size = x.shape[dim]
        at = torch.arange(-before, size + after, device=x.device)
        if mode == "replicate":
            at = at.clamp(0, size - 1)
        elif mode == "circular":
            at = at % size
        else:
            at = (at.abs() - (size - 1)).abs()
            at = (size - 1) - at
        x = x.index_select(dim, at)
    return x


@api(at=AT)
def zeropad2d(x: Tensor, padding: Any, data_format: str = "NCHW") -> Tensor:
    """Zeros around images: left, right, top, bottom."""
    sizes = as_ints(padding)
    sizes = sizes * 4 if len(sizes) == 1 else sizes
    return channels_back(F.pad(channels_first(x, data_format), sizes), data_format)


@api(at=AT)
def affine_grid(theta: Tensor, out_shape: Any, align_corners: bool = True) -> Tensor:
    """The sampling grid of affine maps; `align_corners` is True, where torch's default is False."""
    shape = [len(theta), *as_ints(out_shape)[1:]]
    if not len(theta):
        return theta.new_zeros(0, *shape[2:], theta.shape[1])
    return F.affine_grid(theta, shape, align_corners)


@api(at=AT, x="input")
def grid_sample(
    x: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = True
) -> Tensor:
    """`x` sampled at a grid; `align_corners` is True, where torch's default is False."""
    return F.grid_sample(x, grid, mode, padding_mode, align_corners)


def _resize_line(
    x: Tensor, dim: int, size: int, scale: float | None, mode: str, corners: bool, shifted: bool
) -> Tensor:
    """One dimension resized. Where Paddle makes one element of an image (not of a line or volume), its step is 0."""
    length = x.shape[dim]
    if size == 1 and (corners or mode in ("bilinear", "bicubic")):
        step = 0.0
    elif corners:
        step = (length - 1) / (size - 1)
    else:
        step = 1 / scale if scale else length / size
    at = torch.arange(size, device=x.device, dtype=torch.float64) * step
    if mode == "nearest":
        return x.index_select(dim, (at + 0.5 if corners else at).long().clamp(max=length - 1))
    if shifted and not corners:
        at = at + 0.5 * step - 0.5
    shape = [size if d == dim else 1 for d in range(x.ndim)]
    if mode in SMOOTH:
        at = at.clamp(min=0)
    low = at.floor()
    part = (at - low).to(x.dtype).reshape(shape)
    low = low.long()

    def taken(shift: int) -> Tensor:
        return x.index_select(dim, (low + shift).clamp(0, length - 1))

    if mode in SMOOTH:
        return taken(0) * (1 - part) + taken(1) * part
    a = -0.75  # the cubic convolution of Keys (1981)

    def near(t: Tensor) -> Tensor:
        return ((a + 2) * t - (a + 3)) * t * t + 1

    def far(t: Tensor) -> Tensor:
        return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a

    shares = far(part + 1), near(part), near(1 - part), far(2 - part)
    total = taken(-1) * shares[0]
    for shift, share in enumerate(shares[1:]):
        total = total + taken(shift) * share
    return total


def _target(x: Tensor, size: Any, scale_factor: Any) -> tuple[list[int], list[float | None]]:
    """The sizes of the result and, where they were asked for, the scales."""
    dims = x.ndim - 2
    if size is not None:
        sizes = [int(as_number(n)) for n in size] if isinstance(size, (list, tuple)) else as_ints(size)
        return sizes * dims if len(sizes) == 1 else sizes, [None] * dims
    if scale_factor is None:
        raise ValueError("interpolate needs size or scale_factor")
    given = scale_factor.tolist() if isinstance(scale_factor, Tensor) else scale_factor
    scales = [float(as_number(s)) for s in given] if isinstance(given, (list, tuple)) else [float(given)]
    scales = scales * dims if len(scales) == 1 else scales
    return [math.floor(n * s) for n, s in zip(x.shape[2:], scales, strict=True)], [*scales]


@api("upsample", at=AT)
def interpolate(
    x: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool = False,
    align_mode: int = 0,
    data_format: str | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Resize to `size` or by `scale_factor`.

    `align_mode` 1 takes `step·i` of the input for element i of the output, 0 the middle `step·(i + ½) - ½`.
    """
    layout, mode = data_format or "NC", mode.lower()
    first = channels_first(x, layout)
    sizes, scales = _target(first, size, scale_factor)
    if recompute_scale_factor:
        scales = [None] * len(sizes)
    corners = align_corners if mode in (*SMOOTH, "bicubic") else None
    plain = mode == "area" or (align_mode == 0 and not (mode == "nearest" and align_corners))
    plain = plain or (mode != "nearest" and align_corners) or (mode in ("nearest", "bicubic") and not align_corners)
    ones = mode in ("bilinear", "bicubic") and any(n == 1 < m for n, m in zip(sizes, first.shape[2:], strict=True))
    if tuple(sizes) == tuple(first.shape[2:]):
        return x.clone()
    # torch takes 1 and 2 for a scale that gives the same and twice the size.
    odd = mode != "area" and any(
        s and n != s * m and (n == m or mode == "nearest")
        for n, s, m in zip(sizes, scales, first.shape[2:], strict=True)
    )
    if plain and not ones and not odd:
        kept = None if None in scales or mode == "area" else [float(s) for s in scales if s is not None]
        asked = sizes if kept is None else None
        return channels_back(F.interpolate(first, asked, kept, mode, corners, antialias=antialias), layout)
    for dim, (n, scale) in enumerate(zip(sizes, scales, strict=True)):
        first = _resize_line(first, dim + 2, n, scale, mode, align_corners, align_mode == 0 or mode == "bicubic")
    return channels_back(first, layout)
