"""Normalisations. The momentum of Paddle's batch norms is one minus torch's."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.dtypes import as_ints
from oarlock.paddle.nn import functional
from oarlock.paddle.nn.initializer import Constant
from oarlock.paddle.nn.layer.layers import Layer
from oarlock.paddle.nn.parameter import Parameter


class LayerNorm(Layer):
    """(x - mean) / sqrt(var + epsilon) * weight + bias over the last dimensions."""

    def __init__(
        self,
        normalized_shape: Any,
        epsilon: float = 1e-05,
        *more: Any,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        weight_attr: Any = None,
        bias_attr: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__("layer_norm")
        if more:  # the former order: weight_attr, bias_attr by position
            weight_attr, bias_attr = (*more, None)[:2]
        self._normalized_shape = as_ints(normalized_shape)
        self._epsilon = epsilon
        affine = elementwise_affine
        size = [math.prod(self._normalized_shape)]  # in one dimension, as in Paddle's state dicts
        self.weight = self.create_parameter(
            size, weight_attr if affine else False, dtype, default_initializer=Constant(1.0),
            device=device,
        )  # fmt: skip
        self.bias = self.create_parameter(
            size, bias_attr if affine and bias else False, dtype, is_bias=True, device=device
        )

    def forward(self, input: Tensor) -> Tensor:
        """The same shape."""
        shape, weight, bias = self._normalized_shape, self.weight, self.bias
        if len(shape) > 1:
            weight = None if weight is None else weight.view(shape)
            bias = None if bias is None else bias.view(shape)
        return torch.nn.functional.layer_norm(input, shape, weight, bias, self._epsilon)

    def extra_repr(self) -> str:
        """For printing."""
        return f"normalized_shape={self._normalized_shape}, epsilon={self._epsilon}"


class RMSNorm(Layer):
    """x / sqrt(mean(x^2) + epsilon) * weight over the last dimensions."""

    def __init__(
        self,
        normalized_shape: Any,
        epsilon: float | None = None,
        elementwise_affine: bool = True,
        weight_attr: Any = None,
        dtype: Any = None,
        device: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._normalized_shape, self._epsilon = as_ints(normalized_shape), epsilon
        self.weight = self.create_parameter(
            self._normalized_shape, weight_attr if elementwise_affine else False, dtype,
            default_initializer=Constant(1.0), device=device,
        )  # fmt: skip

    def forward(self, input: Tensor) -> Tensor:
        """The same shape."""
        return torch.nn.functional.rms_norm(input, self._normalized_shape, self.weight, self._epsilon)


def _check_dims(layer: Layer, x: Tensor, allowed: tuple[int, ...]) -> None:
    """Raise ValueError where the input has another number of dimensions; () allows any."""
    if allowed and x.ndim not in allowed:
        wanted = " or ".join(map(str, allowed))
        raise ValueError(f"{type(layer).__name__} takes {wanted} dimensions, got {list(x.shape)}")


class _BatchNorm(Layer):
    layout = "NCHW"
    allowed: tuple[int, ...] = ()  # numbers of dimensions
    _mean: Parameter
    _variance: Parameter

    def __init__(
        self,
        num_features: int,
        momentum: float = 0.9,
        epsilon: float = 1e-05,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str | None = None,
        use_global_stats: bool | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._momentum, self._epsilon = momentum, epsilon
        self._data_format = data_format or self.layout
        self._use_global_stats, self._num_features, self._name = use_global_stats, num_features, name
        self.weight = self.create_parameter([num_features], weight_attr, default_initializer=Constant(1.0))
        self.bias = self.create_parameter([num_features], bias_attr, is_bias=True)
        # Parameters that are not trained, as in Paddle: they have names there.
        self._mean = self._seen(num_features, 0.0, name and f"{name}_mean")
        self._variance = self._seen(num_features, 1.0, name and f"{name}_variance")

    def _seen(self, num_features: int, first: float, name: str | None) -> Parameter:
        made = self.create_parameter([num_features], name, default_initializer=Constant(first), requires_grad=False)
        assert made is not None
        return made

    def forward(self, input: Tensor) -> Tensor:
        """Normalised by the batch while training, else by what was seen.

        Raises:
            ValueError: another number of dimensions.
        """
        _check_dims(self, input, self.allowed)
        return functional.batch_norm(
            input,
            self._mean,
            self._variance,
            weight=self.weight,
            bias=self.bias,
            training=self.training,
            momentum=self._momentum,
            epsilon=self._epsilon,
            data_format=self._data_format,
            use_global_stats=self._use_global_stats,
        )

    def extra_repr(self) -> str:
        """For printing."""
        sizes = f"num_features={self._num_features}, momentum={self._momentum}, epsilon={self._epsilon}"
        layout = "" if self._data_format == "NCHW" else f", data_format={self._data_format}"
        return sizes + layout + (f", name={self._name}" if self._name else "")


class BatchNorm1D(_BatchNorm):
    """Of [N, C] or [N, C, L]."""

    layout, allowed = "NCL", (2, 3)


class BatchNorm2D(_BatchNorm):
    """Of [N, C, H, W]."""

    allowed = (4,)


class BatchNorm3D(_BatchNorm):
    """Of [N, C, D, H, W]."""

    layout, allowed = "NCDHW", (5,)


class BatchNorm(_BatchNorm):
    """Of any number of dimensions, with an activation behind it."""

    def __init__(
        self,
        num_channels: int,
        act: str | None = None,
        is_test: bool = False,
        momentum: float = 0.9,
        epsilon: float = 1e-05,
        param_attr: Any = None,
        bias_attr: Any = None,
        dtype: Any = "float32",
        data_layout: str = "NCHW",
        in_place: bool = False,
        moving_mean_name: str | None = None,
        moving_variance_name: str | None = None,
        do_model_average_for_mean_and_var: bool = True,
        use_global_stats: bool = False,
        trainable_statistics: bool = False,
    ) -> None:
        super().__init__(num_channels, momentum, epsilon, param_attr, bias_attr, data_layout, use_global_stats or None)
        self._act = act
        self._is_test = is_test

    def forward(self, input: Tensor) -> Tensor:
        """Normalised, then the activation."""
        before = self.training
        self.training = before and not self._is_test
        try:
            made = super().forward(input)
        finally:
            self.training = before
        return made if self._act is None else getattr(functional, self._act)(made)

    def extra_repr(self) -> str:
        """Nothing, as in Paddle."""
        return ""


class SyncBatchNorm(_BatchNorm):
    """Of [N, C, ...], with the statistics of all processes while training."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalised by the batch of all processes.

        Raises:
            ValueError: several processes, and channels that are not the second dimension.
        """
        from oarlock.paddle.distributed import get_world_size

        if not self.training or get_world_size() == 1:
            return super().forward(input)
        if not self._data_format.startswith("NC"):
            raise ValueError(f"SyncBatchNorm of several processes takes NC..., got {self._data_format}")
        return _synchronised(input, self)

    @classmethod
    def convert_sync_batchnorm(cls, layer: Layer) -> Layer:
        """The layer with each batch norm replaced; weights and statistics are kept."""
        for name, part in list(layer._modules.items()):
            if isinstance(part, _BatchNorm) and not isinstance(part, cls):
                made = cls(part._mean.numel(), part._momentum, part._epsilon, data_format=part._data_format)
                made.weight, made.bias = part.weight, part.bias
                made._mean, made._variance = part._mean, part._variance
                layer._modules[name] = made
            elif isinstance(part, Layer):
                layer._modules[name] = cls.convert_sync_batchnorm(part)
        return layer


def _synchronised(x: Tensor, layer: SyncBatchNorm) -> Tensor:
    """Sums over all processes; gradients of the sums flow back to all."""
    from torch.distributed.nn.functional import all_reduce

    dims = [0, *range(2, x.ndim)]
    count = torch.full((1,), float(x.numel() // x.shape[1]), device=x.device)
    sums = all_reduce(torch.cat([x.sum(dims), x.square().sum(dims), count]))
    channels, total = x.shape[1], sums[-1]
    mean = sums[:channels] / total
    variance = sums[channels : 2 * channels] / total - mean.square()
    with torch.no_grad():
        keep = layer._momentum
        layer._mean.mul_(keep).add_(mean, alpha=1 - keep)
        layer._variance.mul_(keep).add_(variance, alpha=1 - keep)
    shape = [1, -1] + [1] * (x.ndim - 2)
    made = (x - mean.view(shape)) * torch.rsqrt(variance.view(shape) + layer._epsilon)
    if layer.weight is not None:
        made = made * layer.weight.view(shape)
    return made if layer.bias is None else made + layer.bias.view(shape)


class GroupNorm(Layer):
    """Channels in groups, each group of each sample normalised by itself."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        epsilon: float = 1e-05,
        *more: Any,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str = "NCHW",
        name: str | None = None,
    ) -> None:
        super().__init__()
        if more:
            weight_attr, bias_attr = (*more, None)[:2]
        if data_format not in ("NCL", "NCHW", "NCDHW", "NLC", "NHWC", "NDHWC"):
            raise ValueError(f"data_format = {data_format!r}: NCL, NCHW, NCDHW, NLC, NHWC or NDHWC")
        self._num_groups, self._epsilon, self._data_format = num_groups, epsilon, data_format
        self._num_channels = num_channels
        self.weight = self.create_parameter(
            [num_channels], weight_attr if affine else False, dtype, default_initializer=Constant(1.0), device=device
        )
        self.bias = self.create_parameter(
            [num_channels], bias_attr if affine else False, dtype, is_bias=True, device=device
        )

    def forward(self, input: Tensor) -> Tensor:
        """The same shape."""
        return functional.group_norm(
            input, self._num_groups, self._epsilon, self.weight, self.bias, data_format=self._data_format
        )

    def extra_repr(self) -> str:
        """For printing."""
        return f"num_groups={self._num_groups}, num_channels={self._num_channels}, epsilon={self._epsilon}"


class _InstanceNorm(Layer):
    layout = "NCHW"
    allowed: tuple[int, ...] = (4,)

    def __init__(
        self,
        num_features: int,
        epsilon: float = 1e-05,
        momentum: float = 0.9,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._epsilon, self._num_features = epsilon, num_features
        # Both or none, as the kernel takes them.
        affine = weight_attr is not False and bias_attr is not False
        self.scale = self.create_parameter(
            [num_features], weight_attr if affine else False, default_initializer=Constant(1.0)
        )
        self.bias = self.create_parameter([num_features], bias_attr if affine else False, is_bias=True)

    def forward(self, input: Tensor) -> Tensor:
        """Each channel of each sample normalised by itself.

        Raises:
            ValueError: another number of dimensions.
        """
        _check_dims(self, input, self.allowed)
        return torch.nn.functional.instance_norm(input, weight=self.scale, bias=self.bias, eps=self._epsilon)

    def extra_repr(self) -> str:
        """For printing."""
        return f"num_features={self._num_features}, epsilon={self._epsilon}"


class InstanceNorm1D(_InstanceNorm):
    """Of [N, C, L]."""

    layout, allowed = "NCL", (2, 3)


class InstanceNorm2D(_InstanceNorm):
    """Of [N, C, H, W]."""


class InstanceNorm3D(_InstanceNorm):
    """Of [N, C, D, H, W]."""

    layout, allowed = "NCDHW", (5,)


class SpectralNorm(Layer):
    """A weight divided by its largest singular value, which power iterations estimate.

    Args:
        weight_shape: of the weights that come.
        dim: which dimension makes the rows of the matrix.
        power_iters: iterations per call.
        eps: lower bound of norms.
    """

    def __init__(
        self, weight_shape: Any, dim: int = 0, power_iters: int = 1, eps: float = 1e-12, dtype: Any = "float32"
    ) -> None:
        super().__init__(dtype=dtype)
        from oarlock.paddle.nn.initializer import Normal

        shape = as_ints(weight_shape)
        self._dim, self._iterations, self._eps = dim, power_iters, eps
        height = shape[dim]
        width = torch.Size(shape).numel() // height
        self.weight_u = self.create_parameter([height], default_initializer=Normal(0.0, 1.0))
        self.weight_v = self.create_parameter([width], default_initializer=Normal(0.0, 1.0))
        for vector in (self.weight_u, self.weight_v):
            assert vector is not None
            vector.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """The weight, normalised."""
        u, v = self.weight_u, self.weight_v
        assert u is not None
        assert v is not None
        matrix = x.movedim(self._dim, 0).flatten(1)
        with torch.no_grad():
            for _ in range(self._iterations):
                v.copy_(torch.nn.functional.normalize(matrix.t() @ u, dim=0, eps=self._eps))
                u.copy_(torch.nn.functional.normalize(matrix @ v, dim=0, eps=self._eps))
        return x / torch.dot(u.clone(), matrix @ v.clone())
