"""What every distribution has: shapes, samples, probabilities, entropy, divergence."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution as Engine

from oarlock.paddle.distribution.parameters import Plain, as_value
from oarlock.paddle.dtypes import as_ints


class Distribution(Plain):
    """A distribution over values of `event_shape`, one for each index of `batch_shape`."""

    def __init__(self, batch_shape: Sequence[int] = (), event_shape: Sequence[int] = ()) -> None:
        self._batch_shape = tuple(batch_shape)
        self._event_shape = tuple(event_shape)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape of independent distributions with parameters of their own."""
        return self._batch_shape

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of one value."""
        return self._event_shape

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        raise self._lacks("mean")

    @property
    def variance(self) -> Tensor:
        """The expected square of the distance from the mean."""
        raise self._lacks("variance")

    @property
    def stddev(self) -> Tensor:
        """The square root of the variance."""
        return self.variance.sqrt()

    def sample(self, shape: Sequence[int] = ()) -> Tensor:
        """Values [*shape, *batch_shape, *event_shape], without gradients."""
        raise self._lacks("sample")

    def rsample(self, shape: Sequence[int] = ()) -> Tensor:
        """Values [*shape, *batch_shape, *event_shape] through which gradients reach the parameters."""
        raise self._lacks("rsample")

    def entropy(self) -> Tensor:
        """The expected `-log_prob`, in nats."""
        raise self._lacks("entropy")

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density, or of the probability, of a value."""
        raise self._lacks("log_prob")

    def prob(self, value: Tensor) -> Tensor:
        """The density, or the probability, of a value."""
        return self.log_prob(value).exp()

    def _probs(self, value: Tensor) -> Tensor:
        """The same as `prob`."""
        return self.prob(value)

    probs: Any = _probs  # where a class has a parameter of this name, it is that

    def kl_divergence(self, other: "Distribution") -> Tensor:
        """The expected `log_prob(x) - other.log_prob(x)`."""
        from oarlock.paddle.distribution.kl import kl_divergence

        return kl_divergence(self, other)

    def _lacks(self, what: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} has no {what}")


class ExponentialFamily(Distribution):
    """A distribution of the form `h(x)·exp(t(x)·n - A(n))` with natural parameters n.

    A subclass that gives `_natural_parameters`, `_log_normalizer(*n)` and `_mean_carrier_measure` has an entropy:
    `A(n) - sum n·grad A(n) - E log h(x)`.
    """

    _natural_parameters: tuple[Tensor, ...]
    _mean_carrier_measure: Any
    _log_normalizer: Callable[..., Tensor]

    def entropy(self) -> Tensor:
        """The entropy, [*batch_shape]."""
        natural = [n.detach().requires_grad_() for n in self._natural_parameters]
        with torch.enable_grad():
            normalizer = self._log_normalizer(*natural)
            slopes = torch.autograd.grad(normalizer.sum(), natural, create_graph=True)
        made = normalizer - self._mean_carrier_measure
        for n, slope in zip(natural, slopes, strict=True):
            made = made - (n * slope).reshape((*self._batch_shape, -1)).sum(-1)
        return made


class OnTorch(Distribution):
    """A distribution that is one of torch's: `_engine()` makes it from the parameters as they are now."""

    def _engine(self) -> Engine:
        raise NotImplementedError

    def _start(self) -> None:
        engine = self._engine()
        super().__init__(engine.batch_shape, engine.event_shape)

    def _parameter(self) -> Tensor:
        return next(v for v in vars(self).values() if isinstance(v, Tensor))

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self._engine().mean

    @property
    def variance(self) -> Tensor:
        """The expected square of the distance from the mean."""
        return self._engine().variance

    def sample(self, shape: Sequence[int] = ()) -> Tensor:
        """Values [*shape, *batch_shape, *event_shape], without gradients."""
        return self._engine().sample(torch.Size(as_ints(shape)))

    def rsample(self, shape: Sequence[int] = ()) -> Tensor:
        """Values through which gradients reach the parameters."""
        engine = self._engine()
        if not engine.has_rsample:
            raise self._lacks("rsample")
        return engine.rsample(torch.Size(as_ints(shape)))

    def entropy(self) -> Tensor:
        """The expected `-log_prob`, in nats."""
        return self._engine().entropy()

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density, or of the probability, of a value."""
        return self._engine().log_prob(as_value(value, self._parameter()))

    def cdf(self, value: Any) -> Tensor:
        """The probability of at most a value."""
        return self._engine().cdf(as_value(value, self._parameter()))

    def icdf(self, value: Any) -> Tensor:
        """The value that is not exceeded with a probability: the inverse of `cdf`."""
        return self._engine().icdf(as_value(value, self._parameter()))
