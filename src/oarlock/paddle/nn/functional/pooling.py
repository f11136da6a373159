"""Pools over one to three dimensions: averages, largest values, norms, and their adaptive and fractional kinds.

Where `ceil_mode` lets a last window begin in the padding, Paddle keeps that window and torch drops it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.nn.functional.extents import (
    AT,
    LAYOUTS,
    Sides,
    channels_back,
    channels_first,
    even,
    lowest,
    many,
    pad_sides,
    sides,
    wide,
)


def _framed(extent: Sequence[int], kernel: list[int], stride: list[int], pads: Sides, ceil: bool) -> Sides:
    """The padding with which all windows, and no more, fit; its end is cut or extended."""
    made = []
    for n, k, s, (before, after) in zip(extent, kernel, stride, pads, strict=True):
        windows = (n + before + after - k + (s - 1 if ceil else 0)) // s + 1
        made.append((before, (windows - 1) * s + k - n - before))
    return made


def _is_plain(kernel: list[int], pads: Sides, ceil: bool) -> bool:
    """Whether torch's own pools have the same windows."""
    return not ceil and all(a == b and 2 * a <= k for k, (a, b) in zip(kernel, pads, strict=True))


def _steps(kernel: list[int], stride: Any) -> list[int]:
    return kernel if stride is None else many(stride, len(kernel))


def _window_sums(x: Tensor, kernel: list[int], stride: list[int]) -> Tensor:
    if len(kernel) == 1:  # avg_pool1d takes no divisor
        return F.avg_pool2d(x.unsqueeze(2), [1, *kernel], [1, *stride], divisor_override=1).squeeze(2)
    function = F.avg_pool2d if len(kernel) == 2 else F.avg_pool3d
    return function(x, kernel, stride, divisor_override=1)


def _counts(x: Tensor, kernel: list[int], stride: list[int], pads: Sides, counted: Sides) -> Tensor:
    """How many positions of each window lie in `x` or in its `counted` padding."""
    total = x.new_ones(())
    for n, k, s, (before, after), (left, right) in zip(x.shape[2:], kernel, stride, pads, counted, strict=True):
        begin = torch.arange(0, n + before + after - k + 1, s, device=x.device) - before
        inside = torch.minimum(begin + k, torch.tensor(n + right, device=x.device)) - begin.clamp(min=-left)
        total = total[..., None] * inside.to(x.dtype)  # not positive for a window in the padding, as in Paddle
    return total


def _mean(
    x: Tensor, kernel: list[int], stride: list[int], pads: Sides, ceil: bool, exclusive: bool, divisor: Any
) -> Tensor:
    dims, full = len(kernel), wide(x)
    if _is_plain(kernel, pads, ceil) and divisor is None:
        function = getattr(F, f"avg_pool{dims}d")
        return function(full, kernel, stride, even(pads), False, not exclusive).to(x.dtype)
    frame = _framed(x.shape[2:], kernel, stride, pads, ceil)
    # Paddle counts as much padding after the end as there is before the beginning.
    counted = [(0, 0) if exclusive else (before, before) for before, _ in pads]
    counts = _counts(full, kernel, stride, frame, counted)
    made = _window_sums(pad_sides(full, frame), kernel, stride) / counts
    if divisor is not None:
        made = made * (np.prod(kernel) / divisor)
    return made.to(x.dtype)


def _place(index: Tensor, shape: Sequence[int], pads: Sides, padded: Sequence[int]) -> Tensor:
    """Flat indices into a padded space as those into the space itself; -1 in the padding."""
    flat, inside = torch.zeros_like(index), torch.ones_like(index, dtype=torch.bool)
    for part, n, (before, _) in zip(torch.unravel_index(index, tuple(padded)), shape, pads, strict=True):
        flat = flat * n + (part - before)
        inside = inside & (part >= before) & (part < before + n)
    return torch.where(inside, flat, -1)


def _most(x: Tensor, kernel: list[int], stride: list[int], pads: Sides, ceil: bool, with_index: bool) -> Any:
    function, full = getattr(F, f"max_pool{len(kernel)}d"), wide(x)
    if _is_plain(kernel, pads, ceil):
        made = function(full, kernel, stride, even(pads), 1, False, with_index)
        return (made[0].to(x.dtype), made[1].int()) if with_index else made.to(x.dtype)
    frame = _framed(x.shape[2:], kernel, stride, pads, ceil)
    padded = pad_sides(full, frame, lowest(x.dtype))
    made = function(padded, kernel, stride, 0, 1, False, with_index)
    if not with_index:
        return made.to(x.dtype)
    return made[0].to(x.dtype), _place(made[1], x.shape[2:], frame, padded.shape[2:]).int()


def _declare_pools(dims: int) -> None:
    layout = LAYOUTS[dims]

    def avg_pool1d(
        x: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        exclusive: bool = True,
        ceil_mode: bool = False,
    ) -> Tensor:
        return avg_pool(x, kernel_size, stride, padding, ceil_mode, exclusive)

    def avg_pool(
        x: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        exclusive: bool = True,
        divisor_override: float | None = None,
        data_format: str = layout,
    ) -> Tensor:
        first, kernel = channels_first(x, data_format), many(kernel_size, dims)
        steps = _steps(kernel, stride)
        pads = sides(padding, first.shape[2:], kernel, steps, data_format)
        return channels_back(_mean(first, kernel, steps, pads, ceil_mode, exclusive, divisor_override), data_format)

    def max_pool(
        x: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        return_mask: bool = False,
        ceil_mode: bool = False,
        data_format: str = layout,
    ) -> Any:
        first, kernel = channels_first(x, data_format), many(kernel_size, dims)
        steps = _steps(kernel, stride)
        pads = sides(padding, first.shape[2:], kernel, steps, data_format)
        made = _most(first, kernel, steps, pads, ceil_mode, return_mask)
        if return_mask:
            return tuple(channels_back(part, data_format) for part in made)
        return channels_back(made, data_format)

    def lp_pool(
        x: Tensor,
        norm_type: float,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        data_format: str = layout,
    ) -> Tensor:
        if isinstance(padding, bool):  # torch has `ceil_mode` in this place
            padding, ceil_mode = 0, padding
        first, kernel = channels_first(x, data_format), many(kernel_size, dims)
        steps, p = _steps(kernel, stride), float(norm_type)
        pads = sides(padding, first.shape[2:], kernel, steps, data_format)
        if p == float("inf"):
            return channels_back(_most(first, kernel, steps, pads, ceil_mode, False), data_format)
        frame = _framed(first.shape[2:], kernel, steps, pads, ceil_mode)
        sums = _window_sums(pad_sides(wide(first) ** p, frame), kernel, steps)
        return channels_back((sums ** (1 / p)).to(x.dtype), data_format)

    mean = avg_pool1d if dims == 1 else avg_pool
    mean.__name__, mean.__doc__ = f"avg_pool{dims}d", "Means of windows; padding does not count if `exclusive`."
    max_pool.__name__, max_pool.__doc__ = f"max_pool{dims}d", "Largest values of windows; with their indices if asked."
    lp_pool.__name__, lp_pool.__doc__ = f"lp_pool{dims}d", "`(sum xᵖ)^(1/p)` of windows; infinity: their largest value."
    api(at=AT)(mean)
    api(at=AT, return_mask="return_indices")(max_pool)
    if dims < 3:
        api(at=AT)(lp_pool)


def _sizes(output_size: Any, x: Tensor, dims: int) -> list[int]:
    sizes = list(output_size) if isinstance(output_size, (list, tuple)) else [output_size]
    sizes = sizes * dims if len(sizes) == 1 else sizes
    return [n if size is None else int(size) for size, n in zip(sizes, x.shape[-dims:], strict=True)]


def _declare_adaptive(dims: int) -> None:
    average, largest = getattr(F, f"adaptive_avg_pool{dims}d"), getattr(F, f"adaptive_max_pool{dims}d")

    def mean(x: Tensor, output_size: Any, data_format: str = LAYOUTS[dims]) -> Tensor:
        first = channels_first(x, data_format)
        return channels_back(average(wide(first), _sizes(output_size, first, dims)).to(x.dtype), data_format)

    def most(x: Tensor, output_size: Any, return_mask: bool = False) -> Any:
        made = largest(wide(x), _sizes(output_size, x, dims), return_mask)
        return (made[0].to(x.dtype), made[1].int()) if return_mask else made.to(x.dtype)

    mean.__name__, mean.__doc__ = f"adaptive_avg_pool{dims}d", "Means over windows that give `output_size`."
    most.__name__, most.__doc__ = f"adaptive_max_pool{dims}d", "Largest values over windows that give `output_size`."
    api("paddle.adaptive_avg_pool1d" if dims == 1 else "", at=AT)(mean)
    api(at=AT, return_mask="return_indices")(most)


def _declare_unpool(dims: int) -> None:
    function = getattr(F, f"max_unpool{dims}d")

    def call(
        x: Tensor,
        indices: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        data_format: str = LAYOUTS[dims],
        output_size: Any = None,
    ) -> Tensor:
        size = None if output_size is None else list(output_size)
        steps = None if stride is None else many(stride, dims)
        return function(x, indices.long(), many(kernel_size, dims), steps, many(padding, dims), size)

    call.__name__, call.__doc__ = f"max_unpool{dims}d", "Values put back where `max_pool` found them."
    api(at=AT)(call)


def _fractional_windows(extent: int, windows: int, kernel: int | None, u: float) -> tuple[np.ndarray, np.ndarray]:
    """The begin and end of windows of varying steps, in the float32 arithmetic of Paddle."""
    one, i = np.float32(1), np.arange(windows, dtype=np.float32)
    if kernel is None:
        alpha = np.float32(extent) / np.float32(windows)
        base = extent // windows
        largest = min(
            np.float32(base + 2) / alpha - one, np.float32(extent + 1 - base) / alpha - np.float32(windows - 1)
        )
        u = float(np.float32(u) * largest)
    else:
        alpha = np.float32(extent - kernel) / np.float32(max(windows - 1, 1))
    shift = np.float32(u)
    first = int(shift * alpha)
    begin = ((i + shift) * alpha).astype(np.int64) - first
    end = ((i + one + shift) * alpha).astype(np.int64) - first if kernel is None else begin + kernel
    return begin.clip(0, extent), end.clip(0, extent)


def _declare_fractional(dims: int) -> None:
    def call(
        x: Tensor, output_size: Any, kernel_size: Any = None, random_u: float | None = None, return_mask: bool = False
    ) -> Any:
        u = float(torch.rand(())) if random_u is None else float(random_u)
        if not 0 < u < 1:
            raise ValueError(f"random_u must lie in (0, 1), not {u}")
        counts = _sizes(output_size, x, dims)
        kernels: list[int | None] = [None] * dims if kernel_size is None else [*many(kernel_size, dims)]
        index = torch.arange(x.shape[2:].numel(), device=x.device).reshape(x.shape[2:])
        values = x
        for dim, (count, kernel) in enumerate(zip(counts, kernels, strict=True)):
            begin, end = _fractional_windows(x.shape[2 + dim], count, kernel, u)
            width = int((end - begin).max())
            # A short window repeats its last element, which changes no maximum.
            at = np.minimum(begin[:, None] + np.arange(width), end[:, None] - 1)
            picked = torch.from_numpy(at).to(x.device)
            values = values[(slice(None),) * (2 + 2 * dim) + (picked,)]
            index = index[(slice(None),) * (2 * dim) + (picked,)]
        order = [0, 1, *(2 + 2 * d for d in range(dims)), *(3 + 2 * d for d in range(dims))]
        windows = values.permute(order).flatten(2 + dims)
        flat = index.permute([o - 2 for o in order[2:]]).flatten(dims).expand_as(windows)
        made, at_most = windows.max(-1)
        return (made, flat.gather(-1, at_most.unsqueeze(-1)).squeeze(-1).int()) if return_mask else made

    call.__name__ = f"fractional_max_pool{dims}d"
    call.__doc__ = "Largest values of windows whose steps vary, `random_u` in (0, 1) choosing them (Graham 2015)."
    api(at=AT, return_mask="return_indices")(call)


_DECLARE: tuple[Callable[[int], None], ...] = (_declare_pools, _declare_adaptive, _declare_unpool)
for _dims in (1, 2, 3):
    for _declare in _DECLARE:
        _declare(_dims)
for _dims in (2, 3):
    _declare_fractional(_dims)
