"""Continuous distributions of one number: uniform, Cauchy, Laplace, Gumbel, Student's, gamma and its relatives."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributions as torchs

from oarlock.paddle.distribution.distribution import Distribution, ExponentialFamily, OnTorch
from oarlock.paddle.distribution.normal import generator
from oarlock.paddle.distribution.parameters import as_value, parameters
from oarlock.paddle.dtypes import as_ints


class Uniform(Distribution):
    """`1 / (high - low)` between `low` and `high`, of which both have no density themselves."""

    def __init__(self, low: Any, high: Any, name: str | None = None) -> None:
        self.name = name or "Uniform"
        self.low, self.high = parameters(low, high)
        super().__init__(torch.broadcast_shapes(self.low.shape, self.high.shape))

    @property
    def mean(self) -> Tensor:
        """The middle."""
        return (self.low + self.high) / 2

    @property
    def variance(self) -> Tensor:
        """`(high - low)^2 / 12`."""
        return (self.high - self.low) ** 2 / 12

    def sample(self, shape: Sequence[int] = (), seed: int = 0) -> Tensor:
        """Values [*shape, *batch_shape]; with a `seed`, the same ones each time."""
        with torch.no_grad():
            return self._draw(shape, seed)

    def rsample(self, shape: Sequence[int] = ()) -> Tensor:
        """Values through which gradients reach the bounds."""
        return self._draw(shape, 0)

    def _draw(self, shape: Sequence[int], seed: int) -> Tensor:
        dtype, device = torch.result_type(self.low, self.high), self.low.device
        full = (*as_ints(shape), *self._batch_shape)
        drawn = torch.rand(full, generator=generator(seed, device), dtype=dtype, device=device)
        return self.low + (self.high - self.low) * drawn

    def entropy(self) -> Tensor:
        """`log(high - low)`."""
        return (self.high - self.low).log()

    def log_prob(self, value: Any) -> Tensor:
        """`-log(high - low)` inside, else minus infinity."""
        return self.prob(value).log()

    def prob(self, value: Any) -> Tensor:
        """The density."""
        x = as_value(value, self.low)
        inside = (x > self.low) & (x < self.high)
        return inside.to(torch.promote_types(x.dtype, self.low.dtype)) / (self.high - self.low)


class Cauchy(OnTorch):
    """`1 / (pi·scale·(1 + ((x - loc) / scale)^2))`."""

    def __init__(self, loc: Any, scale: Any, name: str | None = None) -> None:
        self.name = name or "Cauchy"
        self.loc, self.scale = parameters(loc, scale)
        self._start()

    def _engine(self) -> torchs.Cauchy:
        return torchs.Cauchy(self.loc, self.scale, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """There is none."""
        raise ValueError("a Cauchy distribution has no mean")

    @property
    def variance(self) -> Tensor:
        """There is none."""
        raise ValueError("a Cauchy distribution has no variance")

    @property
    def stddev(self) -> Tensor:
        """There is none."""
        raise ValueError("a Cauchy distribution has no standard deviation")


class Laplace(OnTorch):
    """`exp(-|x - loc| / scale) / (2·scale)`."""

    def __init__(self, loc: Any, scale: Any) -> None:
        self.loc, self.scale = parameters(loc, scale)
        self._start()

    def _engine(self) -> torchs.Laplace:
        return torchs.Laplace(self.loc, self.scale, validate_args=False)


class Gumbel(OnTorch):
    """`exp(-(z + exp(-z))) / scale` with `z = (x - loc) / scale`."""

    def __init__(self, loc: Any, scale: Any) -> None:
        self.loc, self.scale = parameters(loc, scale)
        self._start()

    def _engine(self) -> torchs.Gumbel:
        return torchs.Gumbel(self.loc, self.scale, validate_args=False)

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        z = (as_value(value, self.loc) - self.loc) / self.scale
        return -(z + (-z).exp()) - self.scale.log()

    def cdf(self, value: Any) -> Tensor:
        """`exp(-exp(-z))`."""
        z = (as_value(value, self.loc) - self.loc) / self.scale
        return (-(-z).exp()).exp()


class StudentT(OnTorch):
    """Student's distribution with `df` degrees of freedom, moved by `loc` and stretched by `scale`."""

    def __init__(self, df: Any, loc: Any, scale: Any, name: str | None = None) -> None:
        self.name = name or "StudentT"
        self.df, self.loc, self.scale = parameters(df, loc, scale)
        self._start()

    def _engine(self) -> torchs.StudentT:
        return torchs.StudentT(self.df, self.loc, self.scale, validate_args=False)


class Gamma(OnTorch, ExponentialFamily):
    """`rate^a·x^(a-1)·exp(-rate·x) / Gamma(a)` with `a = concentration`."""

    def __init__(self, concentration: Any, rate: Any) -> None:
        self.concentration, self.rate = parameters(concentration, rate)
        self._start()

    def _engine(self) -> torchs.Gamma:
        return torchs.Gamma(self.concentration, self.rate, validate_args=False)


class Chi2(Gamma):
    """The sum of the squares of `df` normal variables: a gamma distribution of `df / 2` and the rate 1/2."""

    def __init__(self, df: Any) -> None:
        (self.df,) = parameters(df)
        super().__init__(self.df / 2, 0.5)


class Exponential(OnTorch, ExponentialFamily):
    """`rate·exp(-rate·x)`."""

    def __init__(self, rate: Any) -> None:
        (self.rate,) = parameters(rate)
        self._start()

    def _engine(self) -> torchs.Exponential:
        return torchs.Exponential(self.rate, validate_args=False)
