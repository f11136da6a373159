"""Layers with weights: linear, embedding, convolutions. A Linear's weight is [in, out]."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.dtypes import dtype_name
from oarlock.paddle.nn import functional
from oarlock.paddle.nn.initializer import Assign, Constant, Normal
from oarlock.paddle.nn.layer.layers import Layer


class Linear(Layer):
    """y = x W + b with W [in, out]."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        weight_attr: Any = None,
        bias_attr: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__("linear")
        self.in_features, self.out_features, self.name = in_features, out_features, name
        self.weight = self.create_parameter([in_features, out_features], weight_attr)
        self.bias = self.create_parameter([out_features], bias_attr, is_bias=True)

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        weight, bias = self.weight, self.bias
        assert weight is not None
        return torch.nn.functional.linear(input, weight.t(), bias)

    def extra_repr(self) -> str:
        """For printing."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, dtype={dtype_name(self._dtype)}" + (f", name={self.name}" if self.name else "")


class Embedding(Layer):
    """Rows of a table [num, dim] by number."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        *,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Any = None,
        _freeze: bool = False,
        device: Any = None,
        dtype: Any = None,
        weight_attr: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__("embedding")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"padding_idx must be within [-{num_embeddings}, {num_embeddings}), got {padding_idx}")
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self._num_embeddings, self._embedding_dim, self._padding = num_embeddings, embedding_dim, padding_idx
        self.max_norm, self.norm_type, self.scale, self.sparse = max_norm, norm_type, scale_grad_by_freq, sparse
        self.weight = self.create_parameter(
            [num_embeddings, embedding_dim],
            weight_attr,
            dtype,
            default_initializer=None if _weight is None else Assign(_weight),
            device=device,
            requires_grad=not _freeze,
        )
        if self.padding_idx is not None:
            assert self.weight is not None
            with torch.no_grad():
                self.weight[self.padding_idx] = 0

    def forward(self, x: Tensor) -> Tensor:
        """[...] of numbers -> [..., dim]."""
        assert self.weight is not None
        return functional.embedding(
            x, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.sparse, self.scale
        )

    def extra_repr(self) -> str:
        """For printing."""
        padding = "" if self._padding is None else f", padding_idx={self._padding}"
        options = f"sparse={self.sparse}, scale_grad_by_freq={self.scale}"
        return f"{self._num_embeddings}, {self._embedding_dim}{padding}, {options}"


class Bilinear(Layer):
    """out_i = x1 W_i x2^T + b_i."""

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        weight_attr: Any = None,
        bias_attr: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._sizes, self._name = (in1_features, in2_features, out_features), name
        self.weight = self.create_parameter([out_features, in1_features, in2_features], weight_attr)
        self.bias = self.create_parameter([1, out_features], bias_attr, is_bias=True)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """[N, in1], [N, in2] -> [N, out]."""
        assert self.weight is not None
        return functional.bilinear(x1, x2, self.weight, self.bias)

    def extra_repr(self) -> str:
        """For printing."""
        sizes = "in1_features={}, in2_features={}, out_features={}".format(*self._sizes)
        return f"{sizes}, dtype={dtype_name(self._dtype)}" + (f", name={self._name}" if self._name else "")


class PReLU(Layer):
    """max(0, x) + a min(0, x) with a trained slope, one or one per channel."""

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        weight_attr: Any = None,
        data_format: str = "NCHW",
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._num_parameters, self._init, self._data_format, self._name = num_parameters, init, data_format, name
        self._weight = self.create_parameter([num_parameters], weight_attr, default_initializer=Constant(init))

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        assert self._weight is not None
        return functional.prelu(x, self._weight, data_format=self._data_format)

    def extra_repr(self) -> str:
        """For printing."""
        slopes = f"num_parameters={self._num_parameters}, data_format={self._data_format}, init={self._init}"
        return f"{slopes}, dtype={dtype_name(self._dtype)}" + (f", name={self._name}" if self._name else "")


def _tuple(value: Any, count: int) -> list[int]:
    return [int(value)] * count if isinstance(value, int) else [int(v) for v in value]


def _layout(given: str | None, first: str) -> str:
    """The layout that is given, by default that with the channels first.

    Raises:
        ValueError: neither that nor the one with the channels last.
    """
    last = f"N{first[2:]}C"
    if given not in (None, first, last):
        raise ValueError(f"data_format = {given!r}: {first} or {last}")
    return given or first


def _convolution_repr(layer: Any, in_channels: int, kernel: list[int], out_channels: int) -> str:
    """Sizes, and options that are not the default. As in Paddle, a padding of 0 alone is the default."""
    count = len(kernel)
    parts = [f"{in_channels}, {out_channels}", f"kernel_size={kernel}"]
    stride, dilation = _tuple(layer.stride, count), _tuple(layer.dilation, count)
    parts += [f"stride={stride}"] if stride != [1] * count else []
    parts += [f"padding={layer.padding}"] if layer.padding != 0 else []
    mode, extra = getattr(layer, "padding_mode", "zeros"), getattr(layer, "output_padding", 0)
    parts += [f"padding_mode={mode}"] if mode != "zeros" else []
    parts += [f"output_padding={extra}"] if extra != 0 else []
    parts += [f"dilation={dilation}"] if dilation != [1] * count else []
    parts += [f"groups={layer.groups}"] if layer.groups != 1 else []
    return ", ".join([*parts, f"data_format={layer.data_format}"])


class _Conv(Layer):
    num_dims = 2
    layout = "NCHW"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        *more: Any,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str | None = None,
    ) -> None:
        super().__init__()
        if more:  # the former order: padding_mode, weight_attr, bias_attr, data_format by position
            names = ("padding_mode", "weight_attr", "bias_attr", "data_format")
            old = dict(zip(names, more, strict=False))
            padding_mode, weight_attr = old.get("padding_mode", padding_mode), old.get("weight_attr", weight_attr)
            bias_attr, data_format = old.get("bias_attr", bias_attr), old.get("data_format", data_format)
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"channels {in_channels} and {out_channels} must be multiples of groups = {groups}")
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise ValueError(f"padding_mode = {padding_mode!r}: zeros, reflect, replicate or circular")
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.padding_mode, self.data_format = padding_mode, _layout(data_format, self.layout)
        kernel = _tuple(kernel_size, self.num_dims)
        std = math.sqrt(2.0 / (math.prod(kernel) * in_channels))
        self.weight = self.create_parameter(
            [out_channels, in_channels // groups, *kernel], weight_attr, dtype, default_initializer=Normal(0.0, std),
            device=device,
        )  # fmt: skip
        self.bias = self.create_parameter(
            [out_channels], bias_attr if bias else False, dtype, is_bias=True, device=device
        )

    def forward(self, x: Tensor) -> Tensor:
        """Convolved."""
        function = getattr(functional, f"conv{self.num_dims}d")
        padding = self.padding
        if self.padding_mode != "zeros":
            sides = _tuple(padding, self.num_dims)
            pairs = [side for size in reversed(sides) for side in (size, size)]
            x = functional.pad(x, pairs, mode=self.padding_mode, data_format=self.data_format)
            padding = 0
        return function(
            x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups, data_format=self.data_format
        )

    def extra_repr(self) -> str:
        """For printing."""
        assert self.weight is not None
        out_channels, each, *kernel = self.weight.shape
        return _convolution_repr(self, each * self.groups, list(kernel), out_channels)


class Conv1D(_Conv):
    """Convolution of [N, C, L]."""

    num_dims, layout = 1, "NCL"


class Conv2D(_Conv):
    """Convolution of [N, C, H, W]."""


class Conv3D(_Conv):
    """Convolution of [N, C, D, H, W]."""

    num_dims, layout = 3, "NCDHW"


class _ConvTranspose(Layer):
    num_dims = 2
    layout = "NCHW"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.stride, self.padding, self.output_padding = stride, padding, output_padding
        self.dilation, self.groups, self.data_format = dilation, groups, _layout(data_format, self.layout)
        kernel = _tuple(kernel_size, self.num_dims)
        self.weight = self.create_parameter([in_channels, out_channels // groups, *kernel], weight_attr)
        self.bias = self.create_parameter([out_channels], bias_attr if bias else False, is_bias=True)

    def forward(self, x: Tensor, output_size: Any = None) -> Tensor:
        """The transposed convolution; `output_size` chooses among the sizes that are possible."""
        function = getattr(functional, f"conv{self.num_dims}d_transpose")
        return function(
            x,
            self.weight,
            self.bias,
            stride=self.stride,
            padding=self.padding,
            output_padding=0 if output_size is not None else self.output_padding,
            dilation=self.dilation,
            groups=self.groups,
            output_size=output_size,
            data_format=self.data_format,
        )

    def extra_repr(self) -> str:
        """For printing."""
        assert self.weight is not None
        in_channels, each, *kernel = self.weight.shape
        return _convolution_repr(self, in_channels, list(kernel), each * self.groups)


class Conv1DTranspose(_ConvTranspose):
    """Transposed convolution of [N, C, L]."""

    num_dims, layout = 1, "NCL"

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0,
        output_padding: Any = 0, groups: int = 1, dilation: Any = 1, weight_attr: Any = None, bias_attr: Any = None,
        data_format: str = "NCL", *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, output_padding, dilation, groups, weight_attr,
            bias_attr, data_format, bias=bias,
        )  # fmt: skip


class Conv2DTranspose(_ConvTranspose):
    """Transposed convolution of [N, C, H, W]."""


class Conv3DTranspose(_ConvTranspose):
    """Transposed convolution of [N, C, D, H, W]."""

    num_dims, layout = 3, "NCDHW"
