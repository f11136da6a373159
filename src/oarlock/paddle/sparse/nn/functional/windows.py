"""Convolutions and pools over the stored places only: no dense tensor is made.

For each tap of the kernel, the entries that it moves to a place of the result are found by their indices; the values
are multiplied by the tap's weights and summed there. The layout is [N, ...spatial, C], the channels dense.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.nn.functional.extents import many, sides
from oarlock.paddle.sparse.entries import COO, from_numbers, numbers_of, values_of
from oarlock.paddle.sparse.nn.functional.activation import AT

LAYOUTS = {2: "NHWC", 3: "NDHWC"}
Hits = list[tuple[Tensor, Tensor]]  # of each tap: entries, and the numbers of the places to which it moves them


def check_input(x: Tensor, dims: int, data_format: str) -> None:
    """Refuse what is no COO tensor [N, ...spatial, C] with dense channels."""
    if data_format != LAYOUTS[dims]:
        raise ValueError(f"data_format must be {LAYOUTS[dims]!r}, not {data_format!r}")
    if x.layout != COO or x.ndim != dims + 2 or x.dense_dim() != 1:
        found = f"{x.layout} of shape {list(x.shape)}"
        raise ValueError(f"a COO tensor of {dims + 1} sparse dimensions and dense channels was expected, not {found}")


def moved(
    places: Tensor, sizes: Sequence[int], kernel: Sequence[int], before: Sequence[int], stride: Any, dilation: Any
) -> Hits:
    """Where each tap of the kernel moves the entries: `(place + before - tap·dilation) / stride`, if it is whole.

    Args:
        places: [1 + spatial, E].
        sizes: of the result, batch and spatial.
    """
    extent = torch.tensor(sizes[1:], device=places.device)[:, None]
    step = torch.tensor(stride, device=places.device)[:, None]
    found = []
    for tap in product(*map(range, kernel)):
        shift = [b - t * d for b, t, d in zip(before, tap, dilation, strict=True)]
        at = places[1:] + torch.tensor(shift, device=places.device)[:, None]
        to = torch.div(at, step, rounding_mode="floor")
        entries = ((at % step == 0) & (to >= 0) & (to < extent)).all(0).nonzero()[:, 0]
        target = torch.cat([places[:1, entries], to[:, entries]])
        found.append((entries, numbers_of(target, sizes)))
    return found


def result_sizes(x: Tensor, kernel: Any, stride: Any, pads: Any, dilation: Any, ceil: bool = False) -> list[int]:
    """The batch and the spatial sizes of the result."""
    made = [x.shape[0]]
    for n, k, s, (a, b), d in zip(x.shape[1:-1], kernel, stride, pads, dilation, strict=True):
        room = n + a + b - d * (k - 1) - 1
        size = (room + (s - 1 if ceil else 0)) // s + 1
        made.append(size - 1 if ceil and (size - 1) * s >= n + a else size)
    return made


def _convolved(x: Tensor, weight: Tensor, hits: Hits, targets: Sequence[Tensor], count: int) -> Tensor:
    """[count, C_out]: the sum over taps of `values @ weight`, at the rows `targets`."""
    values, taps = values_of(x), weight.reshape(-1, *weight.shape[-2:])
    made = values.new_zeros(count, weight.shape[-1])
    for (entries, _), target, tap in zip(hits, targets, taps, strict=True):
        made = made.index_add(0, target, values[entries] @ tap)
    return made


def _check_weight(x: Tensor, weight: Tensor, dims: int, groups: int) -> None:
    if groups != 1:
        raise ValueError(f"sparse convolutions have one group, not {groups}")
    if weight.ndim != dims + 2 or weight.shape[-2] != x.shape[-1]:
        raise ValueError(f"a weight [...kernel, {x.shape[-1]}, C_out] was expected, not {list(weight.shape)}")


def _sparse_conv(dims: int) -> Callable[..., Tensor]:
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
        check_input(x, dims, data_format)
        _check_weight(x, weight, dims, groups)
        kernel, steps, spread = weight.shape[:-2], many(stride, dims), many(dilation, dims)
        pads = sides(padding, x.shape[1:-1], kernel, steps, data_format)
        sizes = result_sizes(x, kernel, steps, pads, spread)
        hits = moved(x._indices(), sizes, kernel, [a for a, _ in pads], steps, spread)
        unique, inverse = torch.unique(torch.cat([numbers for _, numbers in hits]), return_inverse=True)
        targets = inverse.split([len(numbers) for _, numbers in hits])
        made = _convolved(x, weight, hits, targets, len(unique))
        made = made if bias is None else made + bias
        where = from_numbers(unique, sizes)
        return torch.sparse_coo_tensor(where, made, (*sizes, made.shape[-1]), is_coalesced=True, check_invariants=False)

    call.__name__ = f"conv{dims}d"
    call.__doc__ = f"""A convolution over {dims} dimensions, at all places that a stored one reaches.

    Args:
        x: COO [N, ...spatial, C_in], the channels dense.
        weight: [...kernel, C_in, C_out].
        bias: [C_out], added at the places of the result.
        padding: a number, numbers, 'SAME' or 'VALID'.
    """
    return api(at=AT, out=False)(call)


def _submanifold_conv(dims: int) -> Callable[..., Tensor]:
    def call(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        data_format: str = LAYOUTS[dims],
        key: str | None = None,
    ) -> Tensor:
        check_input(x, dims, data_format)
        _check_weight(x, weight, dims, groups)
        kernel, spread, sizes = weight.shape[:-2], many(dilation, dims), x.shape[:-1]
        if any(n != 1 for n in many(stride, dims)):
            raise ValueError(f"a submanifold convolution has the stride 1, not {stride}")
        before = [d * (k // 2) for k, d in zip(kernel, spread, strict=True)]
        x = x.coalesce()
        order = numbers_of(x.indices(), sizes)
        hits, targets = [], []
        for entries, numbers in moved(x._indices(), sizes, kernel, before, [1] * dims, spread):
            at = torch.searchsorted(order, numbers).clamp(max=max(len(order) - 1, 0))
            stored = order[at] == numbers
            hits.append((entries[stored], numbers[stored]))
            targets.append(at[stored])
        made = _convolved(x, weight, hits, targets, len(order))
        made = made if bias is None else made + bias
        shape = (*sizes, made.shape[-1])
        return torch.sparse_coo_tensor(x.indices(), made, shape, is_coalesced=True, check_invariants=False)

    call.__name__ = f"subm_conv{dims}d"
    call.__doc__ = f"""A convolution over {dims} dimensions at the stored places only, which the result has sorted.

    The middle of the kernel (of an even one, the element after it) is at the place of the result.

    Args:
        x: COO [N, ...spatial, C_in], the channels dense.
        weight: [...kernel, C_in, C_out].
        padding: does not matter.
        key: the name under which Paddle keeps the places of equal layers; here it does not matter.
    """
    names = f"{AT}.subm_conv{dims}d_igemm"
    return api(names, at=AT, out=False)(call)


conv2d, conv3d = _sparse_conv(2), _sparse_conv(3)
subm_conv2d, subm_conv3d = _submanifold_conv(2), _submanifold_conv(3)


@api(at=AT, out=False)
def max_pool3d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    data_format: str = "NDHWC",
) -> Tensor:
    """The largest of the stored values in each window that has one.

    Args:
        x: COO [N, D, H, W, C], the channels dense.
    """
    check_input(x, 3, data_format)
    kernel = many(kernel_size, 3)
    steps, ones = kernel if stride is None else many(stride, 3), [1] * 3
    pads = sides(padding, x.shape[1:-1], kernel, steps, data_format)
    sizes = result_sizes(x, kernel, steps, pads, ones, ceil_mode)
    hits = moved(x._indices(), sizes, kernel, [a for a, _ in pads], steps, ones)
    entries = torch.cat([found for found, _ in hits])
    unique, inverse = torch.unique(torch.cat([numbers for _, numbers in hits]), return_inverse=True)
    values = values_of(x)[entries]
    lowest = values.new_full((len(unique), values.shape[-1]), -torch.inf)
    made = lowest.scatter_reduce(0, inverse[:, None].expand_as(values), values, "amax")
    where = from_numbers(unique, sizes)
    return torch.sparse_coo_tensor(where, made, (*sizes, made.shape[-1]), is_coalesced=True, check_invariants=False)
