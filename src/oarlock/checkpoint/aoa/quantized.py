"""Tensors that are computed from blocks of others: fp8 weights with a scale per block, and MXFP4.

A Computed tensor is a source like any other for the algebra: its elements are moved, cut and cast by blocks. Only when
values are needed, the box that a block reads is widened to whole quantisation blocks (its *hull*), data and scales of
the hull are read, and the hull is computed. So a shard that cuts through quantisation blocks gets slice(dequant(full)).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from oarlock.checkpoint.aoa.algebra import Relation

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offset and size."""

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True, eq=False, slots=True)
class Computed:
    """A tensor of `shape` computed from `inputs`, hull by hull.

    Args:
        name: how it was made, for people: "fp8_block(w, w_scale_inv)".
        shape, dtype: of the result.
        inputs: data and scales; like any relation they may come from several source tensors.
        block: size of a quantisation block along each axis of the result; hulls consist of whole blocks.
        units: for each input and each of its axes (axis of the result, elements of the result per element).
        compute: hulls of the inputs -> the hull of the result, which `compute` cuts to the tensor's shape itself.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    inputs: tuple[Relation, ...]
    block: tuple[int, ...]
    units: tuple[tuple[tuple[int, int | Fraction], ...], ...]
    compute: Callable[..., Tensor]

    def hull(self, offset: Sequence[int], size: Sequence[int]) -> Box:
        """The box widened to whole quantisation blocks, and cut at the tensor's end."""
        start = [o // b * b for o, b in zip(offset, self.block, strict=True)]
        stop = [min(n, -(-(o + s) // b) * b) for o, s, b, n in zip(offset, size, self.block, self.shape, strict=True)]
        return tuple(start), tuple(b - a for a, b in zip(start, stop, strict=True))

    def input_boxes(self, hull: Box) -> list[Box]:
        """The box of each input that a hull is computed from."""
        boxes = []
        for units in self.units:
            offset = [hull[0][dim] // unit for dim, unit in units]
            stop = [-(-(hull[0][dim] + hull[1][dim]) // unit) for dim, unit in units]
            boxes.append((tuple(offset), tuple(b - a for a, b in zip(offset, stop, strict=True))))
        return boxes

    def __str__(self) -> str:
        return self.name


def fp8_block(name: str, data: Relation, scale: Relation, block: Sequence[int], dtype: torch.dtype) -> Computed:
    """data * scale, with one scale per block of the last len(block) axes.

    Args:
        data: [..., R, C] of any floating dtype, usually float8_e4m3fn.
        scale: [..., ceil(R / block[0]), ceil(C / block[1])]; floating (float8_e8m0fnu included), or uint8 holding e8m0.
        dtype: of the result; the product is taken in float32.
    """
    num_dims = len(data.shape)
    if not 0 < len(block) <= num_dims or min(block) < 1:
        raise ValueError(f"block {list(block)} does not fit a tensor of shape {data.shape}")
    sizes = (1,) * (num_dims - len(block)) + tuple(block)
    expected = tuple(-(-n // b) for n, b in zip(data.shape, sizes, strict=True))
    if scale.shape != expected:
        raise ValueError(f"{data.shape} in blocks of {list(block)} needs scales of shape {expected}, got {scale.shape}")

    def compute(values: Tensor, scales: Tensor) -> Tensor:
        factors = _scale_values(scales)
        for dim, size in [(dim, size) for dim, size in enumerate(sizes) if size > 1]:
            factors = factors.repeat_interleave(size, dim).narrow(dim, 0, values.shape[dim])
        return (values.float() * factors).to(dtype)

    units = (tuple((k, 1) for k in range(num_dims)), tuple(enumerate(sizes)))
    return Computed(name, data.shape, dtype, (data, scale), sizes, units, compute)


def mxfp4(name: str, data: Relation, scale: Relation, dtype: torch.dtype) -> Computed:
    """MXFP4: two e2m1 values per byte (the low half first) times 2 ** (scale - 127) for every 32 values.

    Args:
        data: uint8 [..., G, 16] (as gpt-oss stores `_blocks`) or [..., G * 16]; float4_e2m1fn_x2 is not a source dtype.
        scale: uint8 or float8_e8m0fnu [..., G].
        dtype: of the result, [..., G * 32].
    """
    grouped = len(data.shape) == len(scale.shape) + 1
    if data.dtype != torch.uint8:
        raise ValueError(f"mxfp4 reads bytes with two values each (uint8), got {data.dtype}")
    if not scale.shape or data.shape != ((*scale.shape, 16) if grouped else (*scale.shape[:-1], scale.shape[-1] * 16)):
        raise ValueError(
            f"mxfp4 data of shape {data.shape} needs scales [..., G] for data [..., G, 16] or [..., G * 16],"
            f" got {scale.shape}"
        )
    *leading, num_groups = scale.shape
    last = len(leading)
    data = data.flatten(last) if grouped else data

    def compute(values: Tensor, scales: Tensor) -> Tensor:
        pairs = values.reshape(*scales.shape, 16).int()
        table = torch.tensor([*_E2M1, *(-x for x in _E2M1)], device=values.device)
        decoded = torch.stack([table[pairs & 15], table[pairs >> 4]], dim=-1).reshape(*scales.shape, 32)
        return (decoded * _scale_values(scales)[..., None]).flatten(-2).to(dtype)

    own = tuple((k, 1) for k in range(last))
    units = ((*own, (last, 2)), (*own, (last, 32)))
    return Computed(name, (*leading, num_groups * 32), dtype, (data, scale), (1,) * last + (32,), units, compute)


def _scale_values(scales: Tensor) -> Tensor:
    """Scales as float32; bytes hold e8m0 exponents."""
    return (scales.view(torch.float8_e8m0fnu) if scales.dtype == torch.uint8 else scales).float()
