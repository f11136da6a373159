"""The operations of detectors as layers."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from oarlock.paddle.nn.functional.extents import many
from oarlock.paddle.nn.initializer import Normal
from oarlock.paddle.nn.layer.layers import Layer
from oarlock.paddle.vision.ops.deformable import deform_conv2d
from oarlock.paddle.vision.ops.regions import psroi_pool, roi_align, roi_pool

__all__ = ["DeformConv2D", "PSRoIPool", "RoIAlign", "RoIPool"]


class DeformConv2D(Layer):
    """`deform_conv2d` with a weight [out_channels, in_channels / groups, kh, kw] and a bias of its own."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        deformable_groups: int = 1,
        groups: int = 1,
        weight_attr: Any = None,
        bias_attr: Any = None,
    ) -> None:
        super().__init__()
        if in_channels % groups:
            raise ValueError(f"in_channels {in_channels} must be a multiple of groups {groups}")
        kernel = many(kernel_size, 2)
        self._options = (stride, padding, dilation, deformable_groups, groups)
        shape = [out_channels, in_channels // groups, *kernel]
        spread = Normal(0.0, math.sqrt(2.0 / (math.prod(kernel) * in_channels)))
        self.weight = self.create_parameter(shape, weight_attr, default_initializer=spread)
        self.bias = self.create_parameter([out_channels], bias_attr, is_bias=True)

    def forward(self, x: Tensor, offset: Tensor, mask: Tensor | None = None) -> Tensor:
        """[N, out_channels, Ho, Wo]."""
        return deform_conv2d(x, offset, self.weight, self.bias, *self._options, mask)


class RoIAlign(Layer):
    """`roi_align` with an output size of its own."""

    def __init__(self, output_size: Any, spatial_scale: float = 1.0) -> None:
        super().__init__()
        self._output_size, self._spatial_scale = output_size, spatial_scale

    def forward(self, x: Tensor, boxes: Tensor, boxes_num: Tensor, aligned: bool = True) -> Tensor:
        """[R, C, P, Q]."""
        return roi_align(x, boxes, boxes_num, self._output_size, self._spatial_scale, aligned=aligned)


class RoIPool(RoIAlign):
    """`roi_pool` with an output size of its own."""

    def forward(self, x: Tensor, boxes: Tensor, boxes_num: Tensor) -> Tensor:  # type: ignore[override]
        """[R, C, P, Q]."""
        return roi_pool(x, boxes, boxes_num, self._output_size, self._spatial_scale)


class PSRoIPool(RoIAlign):
    """`psroi_pool` with an output size of its own."""

    def forward(self, x: Tensor, boxes: Tensor, boxes_num: Tensor) -> Tensor:  # type: ignore[override]
        """[R, C, P, Q]."""
        return psroi_pool(x, boxes, boxes_num, self._output_size, self._spatial_scale)
