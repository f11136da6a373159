"""Distributions of counts and classes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributions as torchs
from torch.distributions.utils import probs_to_logits

from oarlock.paddle.distribution.distribution import Distribution, ExponentialFamily, OnTorch
from oarlock.paddle.distribution.parameters import as_value, parameters
from oarlock.paddle.dtypes import as_ints


class Bernoulli(OnTorch, ExponentialFamily):
    """1 with probability p, else 0."""

    def __init__(self, probs: Any, name: str | None = None) -> None:
        self.name = name or "Bernoulli"
        (self.probs,) = parameters(probs)
        self.logits = probs_to_logits(self.probs, is_binary=True)
        self._start()

    def _engine(self) -> torchs.Bernoulli:
        return torchs.Bernoulli(self.probs, validate_args=False)

    def rsample(self, shape: Sequence[int] = (), temperature: float = 1.0) -> Tensor:
        """Logits whose sigmoid approaches 0 or 1 as the temperature falls; gradients reach p.

        `(log(p / (1 - p)) + log(u / (1 - u))) / temperature` with uniform u.
        """
        full = (*as_ints(shape), *self._batch_shape)
        noise = torch.rand(full, dtype=self.probs.dtype, device=self.probs.device)
        logits = probs_to_logits(self.probs, is_binary=True)
        return (logits + probs_to_logits(noise, is_binary=True)) / temperature

    def cdf(self, value: Any) -> Tensor:
        """0 below 0, `1 - p` below 1, else 1."""
        x = as_value(value, self.probs)
        x, p = torch.broadcast_tensors(x, self.probs)
        return torch.where(x < 0, torch.zeros_like(p), torch.where(x < 1, 1 - p, torch.ones_like(p)))


class Categorical(Distribution):
    """One of k classes.

    Args:
        logits: [..., k]. As in Paddle they are logarithms of weights for `sample`, `entropy` and `kl_divergence`, but
            weights, in proportion to the probabilities, for `probs` and `log_prob`.
    """

    def __init__(self, logits: Any, name: str | None = None) -> None:
        self.name = name or "Categorical"
        (self.logits,) = parameters(logits)
        super().__init__(self.logits.shape[:-1])

    def sample(self, shape: Sequence[int] = ()) -> Tensor:
        """Classes [*shape, *batch_shape], int64."""
        with torch.no_grad():
            return torchs.Categorical(logits=self.logits, validate_args=False).sample(torch.Size(as_ints(shape)))

    def entropy(self) -> Tensor:
        """The entropy of softmax(logits), [*batch_shape]."""
        logs = self.logits.log_softmax(-1)
        return -(logs.exp() * logs).sum(-1)

    def probs(self, value: Tensor) -> Tensor:
        """The probabilities of classes.

        Args:
            value: [*batch_shape, n], n classes of each distribution; with one dimension, of all of them.
        """
        shares = self.logits / self.logits.sum(-1, keepdim=True)
        index = torch.as_tensor(value, dtype=torch.int64, device=shares.device)
        if shares.ndim == 1 or index.ndim <= 1:
            return shares[..., index]
        return shares.gather(-1, index)

    def prob(self, value: Tensor) -> Tensor:
        """The same as `probs`."""
        return self.probs(value)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of `probs`."""
        return self.probs(value).log()


class Binomial(OnTorch):
    """The number of successes of `total_count` trials of probability `probs`."""

    def __init__(self, total_count: Any, probs: Any) -> None:
        self.probs, self.total_count = parameters(probs, total_count)
        self._start()

    def _engine(self) -> torchs.Binomial:
        return torchs.Binomial(self.total_count, self.probs, validate_args=False)

    def entropy(self) -> Tensor:
        """Minus the sum of `p·log p` over all counts, [*batch_shape]."""
        most = int(self.total_count.detach().max())
        return _entropy(
            self, torch.arange(most + 1, dtype=self.probs.dtype, device=self.probs.device), self.total_count
        )


class Multinomial(OnTorch):
    """How often each of k classes came in `total_count` draws, [..., k].

    Args:
        total_count: an integer.
        probs: weights [..., k], in proportion to the probabilities.
    """

    def __init__(self, total_count: int, probs: Tensor) -> None:
        if int(total_count) < 1:
            raise ValueError(f"total_count must be at least 1, not {total_count}")
        (found,) = parameters(probs)
        if found.ndim < 1:
            raise ValueError("probs must have at least one dimension")
        self.probs, self.total_count = found / found.sum(-1, keepdim=True), total_count
        self._start()

    def _engine(self) -> torchs.Multinomial:
        return torchs.Multinomial(int(self.total_count), self.probs, validate_args=False)


class Poisson(OnTorch):
    """`rate^k·exp(-rate) / k!`; a rate that is a number is of shape [1]."""

    def __init__(self, rate: Any) -> None:
        (found,) = parameters(rate)
        self.rate = found.reshape(1) if not isinstance(rate, Tensor) and found.ndim == 0 else found
        self._start()

    def _engine(self) -> torchs.Poisson:
        return torchs.Poisson(self.rate, validate_args=False)

    def entropy(self) -> Tensor:
        """Minus the sum of `p·log p` over the counts within 30 standard deviations, [*batch_shape]."""
        top = float(self.rate.detach().max())
        counts = torch.arange(int(top + 30 * max(top, 1.0) ** 0.5) + 1, dtype=self.rate.dtype, device=self.rate.device)
        return _entropy(self, counts, None)


class Geometric(OnTorch):
    """The number of failures before the first success, `p·(1 - p)^k`."""

    def __init__(self, probs: Any) -> None:
        (self.probs,) = parameters(probs)
        self._start()

    def _engine(self) -> torchs.Geometric:
        return torchs.Geometric(self.probs, validate_args=False)

    def pmf(self, k: Any) -> Tensor:
        """The probability of k failures."""
        return self.log_pmf(k).exp()

    def log_pmf(self, k: Any) -> Tensor:
        """`log p + k·log(1 - p)`."""
        return self.log_prob(k)

    def rsample(self, shape: Sequence[int] = ()) -> Tensor:
        """The same as `sample`: counts have no gradient."""
        return self.sample(shape)

    def cdf(self, k: Any) -> Tensor:  # type: ignore[override]
        """`1 - (1 - p)^(k+1)`."""
        return 1 - (1 - self.probs) ** (as_value(k, self.probs) + 1)


def _entropy(counts_of: OnTorch, counts: Tensor, most: Tensor | None) -> Tensor:
    """Minus the sum of `p·log p` over `counts`, those above `most` left out."""
    counts = counts.reshape(-1, *[1] * len(counts_of.batch_shape))
    inside = torch.ones_like(counts, dtype=torch.bool) if most is None else counts <= most
    logs = counts_of.log_prob(torch.where(inside, counts, 0.0))
    return -torch.where(inside, logs.exp() * logs, 0.0).sum(0)
