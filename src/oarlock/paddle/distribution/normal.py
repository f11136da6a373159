"""The normal distribution, its exponential, and the one of several dimensions."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal as TorchMultivariateNormal

from oarlock.paddle.distribution.distribution import Distribution, OnTorch
from oarlock.paddle.distribution.parameters import as_value, parameters
from oarlock.paddle.distribution.transform import ExpTransform
from oarlock.paddle.distribution.transformed_distribution import TransformedDistribution
from oarlock.paddle.dtypes import as_ints


def generator(seed: int, device: torch.device) -> torch.Generator | None:
    """A generator that begins at `seed`; the global one for 0."""
    return torch.Generator(device).manual_seed(seed) if seed else None


class Normal(Distribution):
    """`exp(-(x - loc)^2 / (2·scale^2)) / sqrt(2·pi·scale^2)`.

    A complex `loc` makes it the circular one of complex values, `exp(-|x - loc|^2 / scale^2) / (pi·scale^2)`.

    Args:
        loc: the mean, a number or of any shape.
        scale: the standard deviation, of a shape that broadcasts with it.
    """

    def __init__(self, loc: Any, scale: Any, name: str | None = None) -> None:
        self.name = name or "Normal"
        self.loc, self.scale = parameters(loc, scale)
        super().__init__(torch.broadcast_shapes(self.loc.shape, self.scale.shape))

    @property
    def mean(self) -> Tensor:
        """`loc`."""
        return self.loc.expand(self._batch_shape)

    @property
    def variance(self) -> Tensor:
        """`scale^2`."""
        return self.scale.expand(self._batch_shape) ** 2

    def sample(self, shape: Sequence[int] = (), seed: int = 0) -> Tensor:
        """Values [*shape, *batch_shape]; with a `seed`, the same ones each time."""
        with torch.no_grad():
            return self._draw(shape, seed)

    def rsample(self, shape: Sequence[int] = ()) -> Tensor:
        """Values through which gradients reach the parameters."""
        return self._draw(shape, 0)

    def _draw(self, shape: Sequence[int], seed: int) -> Tensor:
        dtype, device = torch.result_type(self.loc, self.scale), self.loc.device
        full = (*as_ints(shape), *self._batch_shape)
        return self.loc + self.scale * torch.randn(full, generator=generator(seed, device), dtype=dtype, device=device)

    def entropy(self) -> Tensor:
        """`1/2 + log(2·pi)/2 + log(scale)`; `1 + log(pi) + 2·log(scale)` of complex values."""
        scale = self.scale.expand(self._batch_shape)
        if self.loc.is_complex():
            return 1 + math.log(math.pi) + 2 * scale.log()
        return 0.5 + 0.5 * math.log(2 * math.pi) + scale.log()

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        distance = as_value(value, self.loc) - self.loc
        if self.loc.is_complex():
            made = -((distance.abs() / self.scale) ** 2) - 2 * self.scale.log() - math.log(math.pi)
            return made.to(self.loc.dtype)
        return -(distance**2) / (2 * self.scale**2) - self.scale.log() - 0.5 * math.log(2 * math.pi)


class LogNormal(TransformedDistribution):
    """The exponential of a normal variable of mean `loc` and standard deviation `scale`."""

    def __init__(self, loc: Any, scale: Any) -> None:
        normal = Normal(loc, scale)
        super().__init__(normal, [ExpTransform()])
        self.loc, self.scale = normal.loc, normal.scale

    @property
    def mean(self) -> Tensor:
        """`exp(loc + scale^2 / 2)`."""
        return (self._base.mean + self._base.variance / 2).exp()

    @property
    def variance(self) -> Tensor:
        """`(exp(scale^2) - 1)·exp(2·loc + scale^2)`."""
        return self._base.variance.expm1() * (2 * self._base.mean + self._base.variance).exp()

    def entropy(self) -> Tensor:
        """That of the normal variable, and `loc`."""
        return self._base.entropy() + self._base.mean


class MultivariateNormal(OnTorch):
    """`exp(-(x - loc)·C^-1·(x - loc) / 2) / sqrt((2·pi)^k·det C)`, one of the three matrices given.

    Args:
        loc: [..., k], or a number for all of them.
        covariance_matrix: C, [..., k, k].
        precision_matrix: its inverse.
        scale_tril: its lower Cholesky factor.
    """

    def __init__(
        self,
        loc: Any,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
    ) -> None:
        given = [m for m in (covariance_matrix, precision_matrix, scale_tril) if m is not None]
        if len(given) != 1:
            raise ValueError("give one of covariance_matrix, precision_matrix and scale_tril")
        if given[0].ndim < 2:
            raise ValueError(f"the matrix must be at least two-dimensional, not of shape {list(given[0].shape)}")
        self.loc, _ = parameters(loc, given[0])
        if self.loc.ndim == 0:
            self.loc = self.loc.expand(given[0].shape[-1:])
        self.covariance_matrix, self.precision_matrix, self.scale_tril = covariance_matrix, precision_matrix, scale_tril
        self._start()

    def _engine(self) -> TorchMultivariateNormal:
        matrices = self.covariance_matrix, self.precision_matrix, self.scale_tril
        return TorchMultivariateNormal(self.loc, *matrices, validate_args=False)
