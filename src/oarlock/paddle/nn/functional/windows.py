"""Convolution, pooling and unfolding."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import as_ints
from oarlock.paddle.nn.functional.layers import channels_back, channels_first

AT = "paddle.nn.functional"
LAYOUTS = {1: "NCL", 2: "NCHW", 3: "NCDHW"}


def _many(value: Any, dims: int) -> Any:
    values = as_ints(value)
    return values * dims if len(values) == 1 else values


def _padded(x: Tensor, padding: Any, dims: int, value: float = 0.0) -> tuple[Tensor, Any]:
    """`x` and a padding that torch takes: sides of unequal size are padded here."""
    if isinstance(padding, str):
        return x, padding.lower()
    if isinstance(padding, (list, tuple)) and padding and isinstance(padding[0], (list, tuple)):
        padding = [int(n) for pair in padding[-dims:] for n in pair]
    sizes = as_ints(padding)
    if len(sizes) == 2 * dims and dims > 0 and len(sizes) > 1 and len(sizes) != dims:
        pairs = [sizes[i : i + 2] for i in range(0, len(sizes), 2)]
        if all(a == b for a, b in pairs):
            return x, [a for a, _ in pairs]
        return F.pad(x, [n for pair in reversed(pairs) for n in pair], value=value), 0
    return x, _many(sizes, dims)


def _declare_conv(dims: int) -> None:
    function = getattr(F, f"conv{dims}d")

    def call(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        data_format: str = LAYOUTS[dims],
    ) -> Tensor:
        first, sizes = _padded(channels_first(x, data_format), padding, dims)
        made = function(first, weight, bias, _many(stride, dims), sizes, _many(dilation, dims), groups)
        return channels_back(made, data_format)

    call.__name__ = f"conv{dims}d"
    call.__doc__ = f"Convolution over {dims} dimension(s); `padding` also per side, or 'SAME', 'VALID'."
    api(f"paddle.conv{dims}d", at=AT)(call)


def _declare_conv_transpose(dims: int) -> None:
    function = getattr(F, f"conv_transpose{dims}d")

    def transposed(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Any,
        padding: Any,
        output_padding: Any,
        dilation: Any,
        groups: int,
        output_size: Any,
        data_format: str,
    ) -> Tensor:
        first = channels_first(x, data_format)
        steps, spread = _many(stride, dims), _many(dilation, dims)
        _, sizes = _padded(first, padding, dims)
        pads = [0] * dims if isinstance(sizes, str) else _many(sizes, dims)
        extra = _many(output_padding, dims)
        if output_size is not None:
            wanted, kernel = _many(output_size, dims), weight.shape[2:]
            least = [
                (n - 1) * s - 2 * p + d * (k - 1) + 1
                for n, s, p, d, k in zip(first.shape[2:], steps, pads, spread, kernel, strict=True)
            ]
            extra = [w - m for w, m in zip(wanted, least, strict=True)]
        return channels_back(function(first, weight, bias, steps, pads, extra, groups, spread), data_format)

    if dims == 2:

        def call(  # pyright: ignore[reportRedeclaration]
            x: Tensor,
            weight: Tensor,
            bias: Tensor | None = None,
            stride: Any = 1,
            padding: Any = 0,
            output_padding: Any = 0,
            dilation: Any = 1,
            groups: int = 1,
            output_size: Any = None,
            data_format: str = LAYOUTS[dims],
        ) -> Tensor:
            return transposed(
                x, weight, bias, stride, padding, output_padding, dilation, groups, output_size, data_format
            )

    else:

        def call(
            x: Tensor,
            weight: Tensor,
            bias: Tensor | None = None,
            stride: Any = 1,
            padding: Any = 0,
            output_padding: Any = 0,
            groups: int = 1,
            dilation: Any = 1,
            output_size: Any = None,
            data_format: str = LAYOUTS[dims],
        ) -> Tensor:
            return transposed(
                x, weight, bias, stride, padding, output_padding, dilation, groups, output_size, data_format
            )

    call.__name__ = f"conv{dims}d_transpose"
    call.__doc__ = f"Transposed convolution over {dims} dimension(s), of `output_size` if given."
    api(at=AT)(call)


def _declare_pools(dims: int) -> None:
    average, largest = getattr(F, f"avg_pool{dims}d"), getattr(F, f"max_pool{dims}d")
    layout = LAYOUTS[dims]

    def mean_of(x: Tensor, kernel: Any, stride: Any, padding: Any, ceil: bool, exclusive: bool, *more: Any) -> Tensor:
        kernel = _many(kernel, dims)
        stride = kernel if stride is None else _many(stride, dims)
        x, sizes = _padded(x, padding, dims)
        return average(x, kernel, stride, _numbers(sizes), ceil, not exclusive, *more)

    def avg_pool1d(
        x: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        exclusive: bool = True,
        ceil_mode: bool = False,
    ) -> Tensor:
        return mean_of(x, kernel_size, stride, padding, ceil_mode, exclusive)

    def avg_pool(
        x: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        exclusive: bool = True,
        divisor_override: int | None = None,
        data_format: str = layout,
    ) -> Tensor:
        first = channels_first(x, data_format)
        made = mean_of(first, kernel_size, stride, padding, ceil_mode, exclusive, divisor_override)
        return channels_back(made, data_format)

    def max_pool(
        x: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        return_mask: bool = False,
        ceil_mode: bool = False,
        data_format: str = layout,
    ) -> Any:
        first, sizes = _padded(channels_first(x, data_format), padding, dims, float("-inf"))
        kernel = _many(kernel_size, dims)
        steps = kernel if stride is None else _many(stride, dims)
        made = largest(first, kernel, steps, _numbers(sizes), 1, ceil_mode, return_mask)
        if return_mask:
            return tuple(channels_back(part, data_format) for part in made)
        return channels_back(made, data_format)

    mean = avg_pool1d if dims == 1 else avg_pool
    mean.__name__, mean.__doc__ = f"avg_pool{dims}d", "Means of windows; padding does not count if `exclusive`."
    max_pool.__name__, max_pool.__doc__ = f"max_pool{dims}d", "Largest values of windows; with their indices if asked."
    api(at=AT)(mean)
    api(at=AT, return_mask="return_indices")(max_pool)


def _numbers(sizes: Any) -> Any:
    return 0 if sizes == "valid" else sizes


def _declare_adaptive(dims: int) -> None:
    average, largest = getattr(F, f"adaptive_avg_pool{dims}d"), getattr(F, f"adaptive_max_pool{dims}d")

    def mean(x: Tensor, output_size: Any, data_format: str = LAYOUTS[dims]) -> Tensor:
        first = channels_first(x, data_format)
        return channels_back(average(first, _sizes(output_size, first, dims)), data_format)

    def most(x: Tensor, output_size: Any, return_mask: bool = False) -> Any:
        return largest(x, _sizes(output_size, x, dims), return_mask)

    mean.__name__, mean.__doc__ = f"adaptive_avg_pool{dims}d", "Means over windows that give `output_size`."
    most.__name__, most.__doc__ = f"adaptive_max_pool{dims}d", "Largest values over windows that give `output_size`."
    api("paddle.adaptive_avg_pool1d" if dims == 1 else "", at=AT)(mean)
    api(at=AT, return_mask="return_indices")(most)


def _sizes(output_size: Any, x: Tensor, dims: int) -> list[int]:
    sizes = list(output_size) if isinstance(output_size, (list, tuple)) else [output_size] * dims
    return [n if size is None else int(size) for size, n in zip(sizes, x.shape[-dims:], strict=True)]


def _declare_lp(dims: int) -> None:
    function = getattr(F, f"lp_pool{dims}d")

    def call(
        x: Tensor,
        norm_type: float,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        data_format: str = LAYOUTS[dims],
    ) -> Tensor:
        first, sizes = _padded(channels_first(x, data_format), padding, dims)
        sizes = [0] * dims if isinstance(sizes, (str, int)) else sizes
        first = F.pad(first, [n for size in reversed(sizes) for n in (size, size)]) if any(sizes) else first
        kernel = _many(kernel_size, dims) if dims > 1 else as_ints(kernel_size)[0]
        steps = kernel if stride is None else _many(stride, dims) if dims > 1 else as_ints(stride)[0]
        return channels_back(function(first, float(norm_type), kernel, steps, ceil_mode), data_format)

    call.__name__, call.__doc__ = f"lp_pool{dims}d", "p-norms of windows."
    api(at=AT)(call)


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
        size = None if output_size is None else as_ints(output_size)
        steps = None if stride is None else _many(stride, dims)
        return function(x, indices.long(), _many(kernel_size, dims), steps, _many(padding, dims), size)

    call.__name__, call.__doc__ = f"max_unpool{dims}d", "Values put back where `max_pool` found them."
    api(at=AT)(call)


for _dims in (1, 2, 3):
    _declare_conv(_dims)
    _declare_conv_transpose(_dims)
    _declare_pools(_dims)
    _declare_adaptive(_dims)
    _declare_unpool(_dims)
for _dims in (1, 2):
    _declare_lp(_dims)


@api(at=AT, compat="kernel_size dilation padding stride", x="", kernel_sizes="", strides="", paddings="", dilations="")
def unfold(x: Tensor, kernel_sizes: Any, strides: Any = 1, paddings: Any = 0, dilations: Any = 1) -> Tensor:
    """The windows of images as columns, [N, C·kh·kw, L]; `paddings` may hold four numbers: top, left, bottom, right."""
    sizes = as_ints(paddings)
    if len(sizes) == 4:
        top, left, bottom, right = sizes
        x, sizes = F.pad(x, (left, right, top, bottom)), [0]
    return F.unfold(x, _many(kernel_sizes, 2), _many(dilations, 2), _many(sizes, 2), _many(strides, 2))


@api(at=AT, output_sizes="output_size")
def fold(
    x: Tensor, output_sizes: Any, kernel_sizes: Any, strides: Any = 1, paddings: Any = 0, dilations: Any = 1
) -> Tensor:
    """The sum of columns put back as windows: the transpose of `unfold`."""
    sizes = as_ints(paddings)
    height, width = _many(output_sizes, 2)
    if len(sizes) == 4:
        top, left, bottom, right = sizes
        whole = (height + top + bottom, width + left + right)
        made = F.fold(x, whole, _many(kernel_sizes, 2), _many(dilations, 2), 0, _many(strides, 2))
        return made[..., top : top + height, left : left + width]
    return F.fold(x, (height, width), _many(kernel_sizes, 2), _many(dilations, 2), _many(sizes, 2), _many(strides, 2))
