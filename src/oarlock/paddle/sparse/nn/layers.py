"""Layers of sparse tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.nn.functional.extents import many
from oarlock.paddle.nn.initializer import Normal
from oarlock.paddle.nn.layer import norm
from oarlock.paddle.nn.layer.layers import Layer
from oarlock.paddle.sparse.entries import on_values
from oarlock.paddle.sparse.nn import functional
from oarlock.paddle.sparse.nn.functional import activation, windows


class ReLU(Layer):
    """`relu` as a layer."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """The same places."""
        return activation.relu(x)


class ReLU6(Layer):
    """`relu6` as a layer."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """The same places."""
        return activation.relu6(x)


class LeakyReLU(Layer):
    """`leaky_relu` with a slope of its own."""

    def __init__(self, negative_slope: float = 0.01, name: str | None = None) -> None:
        super().__init__()
        self._negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        """The same places."""
        return activation.leaky_relu(x, self._negative_slope)


class Softmax(Layer):
    """`softmax` along a dimension of its own."""

    def __init__(self, axis: int = -1, name: str | None = None) -> None:
        super().__init__()
        self._axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """The same places."""
        return activation.softmax(x, self._axis)


@api(at="paddle.sparse.nn", out=False)
def _normalised(x: Tensor, normalise: Callable[[Tensor], Tensor]) -> Tensor:
    """`normalise(values)` at the same places."""
    return on_values(x, normalise, "nn.BatchNorm")


class BatchNorm(norm.BatchNorm1D):
    """The batch normalisation of the stored values [E, C]; what is not stored does not count."""

    def __init__(
        self,
        num_features: int,
        momentum: float = 0.9,
        epsilon: float = 1e-05,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str = "NDHWC",
        use_global_stats: bool | None = None,
        name: str | None = None,
    ) -> None:
        if data_format not in ("NDHWC", "NHWC"):
            raise ValueError(f"data_format must be 'NDHWC' or 'NHWC', not {data_format!r}")
        super().__init__(num_features, momentum, epsilon, weight_attr, bias_attr, "NC", use_global_stats, name)

    def forward(self, input: Tensor) -> Tensor:
        """The same places."""
        return _normalised(input, super().forward)


class SyncBatchNorm(norm.SyncBatchNorm):
    """`BatchNorm` with the statistics of all processes while training."""

    def __init__(
        self,
        num_features: int,
        momentum: float = 0.9,
        epsilon: float = 1e-05,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str = "NCHW",
        name: str | None = None,
    ) -> None:
        super().__init__(num_features, momentum, epsilon, weight_attr, bias_attr, "NC", None, name)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """The same places."""
        return _normalised(x, super().forward)

    @classmethod
    def convert_sync_batchnorm(cls, layer: Layer) -> Layer:
        """The layer with each batch norm replaced, sparse by sparse; weights and statistics are kept."""
        for name, part in list(layer._modules.items()):
            if isinstance(part, BatchNorm):
                made = cls(part._mean.numel(), part._momentum, part._epsilon)
                made.weight, made.bias = part.weight, part.bias
                made._mean, made._variance = part._mean, part._variance
                layer._modules[name] = made
            elif isinstance(part, Layer) and not isinstance(part, norm.SyncBatchNorm):
                layer._modules[name] = cls.convert_sync_batchnorm(part)
        return norm.SyncBatchNorm.convert_sync_batchnorm(layer)


class _Conv(Layer):
    dims = 3
    function = "conv3d"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        padding_mode: str = "zeros",
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str | None = None,
    ) -> None:
        super().__init__()
        if padding_mode != "zeros" or groups != 1:
            raise ValueError(f"sparse convolutions pad with zeros, in one group, not {padding_mode!r}, {groups}")
        kernel = many(kernel_size, self.dims)
        self._options = (stride, padding, dilation, groups, data_format or windows.LAYOUTS[self.dims])
        spread = Normal(0.0, math.sqrt(2.0 / (math.prod(kernel) * in_channels)))
        shape = [*kernel, in_channels, out_channels]
        self.weight = self.create_parameter(shape, weight_attr, default_initializer=spread)
        self.bias = self.create_parameter([out_channels], bias_attr, is_bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """[N, ...spatial, C_out], sparse."""
        return getattr(functional, self.function)(x, self.weight, self.bias, *self._options)


class Conv2D(_Conv):
    """`conv2d` with a weight [kh, kw, in_channels, out_channels] and a bias of its own."""

    dims, function = 2, "conv2d"


class Conv3D(_Conv):
    """`conv3d` with a weight [kd, kh, kw, in_channels, out_channels] and a bias of its own."""


class _SubmConv(_Conv):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        padding_mode: str = "zeros",
        key: str | None = None,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str | None = None,
        backend: str | None = None,
    ) -> None:
        if backend not in (None, "igemm"):
            raise ValueError(f"backend must be None or 'igemm', not {backend!r}")
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            padding_mode,
            weight_attr,
            bias_attr,
            data_format,
        )


class SubmConv2D(_SubmConv):
    """`subm_conv2d` with a weight [kh, kw, in_channels, out_channels] and a bias of its own."""

    dims, function = 2, "subm_conv2d"


class SubmConv3D(_SubmConv):
    """`subm_conv3d` with a weight [kd, kh, kw, in_channels, out_channels] and a bias of its own."""

    function = "subm_conv3d"


class MaxPool3D(Layer):
    """`max_pool3d` with a window of its own."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        return_mask: bool = False,
        ceil_mode: bool = False,
        data_format: str = "NDHWC",
        name: str | None = None,
    ) -> None:
        super().__init__()
        if return_mask:
            raise ValueError("a sparse pool has no mask to return")
        self._options = (kernel_size, stride, padding, ceil_mode, data_format)

    def forward(self, x: Tensor) -> Tensor:
        """[N, ...spatial, C], sparse."""
        return windows.max_pool3d(x, *self._options)


__all__ = [
    "BatchNorm",
    "Conv2D",
    "Conv3D",
    "LeakyReLU",
    "MaxPool3D",
    "ReLU",
    "ReLU6",
    "Softmax",
    "SubmConv2D",
    "SubmConv3D",
    "SyncBatchNorm",
]
