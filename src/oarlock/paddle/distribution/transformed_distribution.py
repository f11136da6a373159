"""What transforms make of a random variable."""

from collections.abc import Sequence

import torch
from torch import Tensor

from oarlock.paddle.distribution.distribution import Distribution
from oarlock.paddle.distribution.parameters import sum_rightmost
from oarlock.paddle.distribution.transform import ChainTransform, Transform


class TransformedDistribution(Distribution):
    """`y = f(x)` for x of `base`, with f the transforms one after the other.

    `log_prob(y) = base.log_prob(x) - log|det J(x)|` with `x = f^-1(y)`.
    """

    def __init__(self, base: Distribution, transforms: Sequence[Transform]) -> None:
        if not isinstance(base, Distribution):
            raise TypeError(f"base must be a Distribution, not {type(base).__name__}")
        if not transforms or not all(isinstance(t, Transform) for t in transforms):
            raise TypeError("transforms must be a sequence of Transform, of at least one")
        chain = ChainTransform(transforms)
        whole = tuple(base.batch_shape) + tuple(base.event_shape)
        if len(whole) < chain.domain_rank:
            raise ValueError(f"the transforms take values of {chain.domain_rank} dimensions, the base has {len(whole)}")
        self._base, self._transforms, self._chain = base, list(transforms), chain
        made = tuple(chain.forward_shape(whole))
        rank = chain.codomain_rank + max(len(base.event_shape) - chain.domain_rank, 0)
        super().__init__(made[: len(made) - rank], made[len(made) - rank :])

    def sample(self, shape: Sequence[int] = ()) -> Tensor:
        """Samples of the base, transformed."""
        with torch.no_grad():
            return self._chain.forward(self._base.sample(shape))

    def rsample(self, shape: Sequence[int] = ()) -> Tensor:
        """Samples of the base, transformed, with gradients."""
        return self._chain.forward(self._base.rsample(shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density, [..., *batch_shape]."""
        rank, made, y = len(self._event_shape), torch.zeros((), dtype=value.dtype, device=value.device), value
        for transform in reversed(self._transforms):
            x = transform.inverse(y)
            rank += transform.domain_rank - transform.codomain_rank
            change = transform.spread_log_det(x, rank - transform.domain_rank)
            made = made - change
            y = x
        return made + sum_rightmost(self._base.log_prob(y), rank - len(self._base.event_shape))
