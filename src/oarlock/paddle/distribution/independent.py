"""Dimensions of a batch taken for dimensions of a value."""

from collections.abc import Sequence

from torch import Tensor

from oarlock.paddle.distribution.distribution import Distribution
from oarlock.paddle.distribution.parameters import sum_rightmost


class Independent(Distribution):
    """`base`, of whose batch the last `reinterpreted_batch_rank` dimensions belong to one value.

    Raises:
        ValueError: not from 1 up to the dimensions of the batch.
    """

    def __init__(self, base: Distribution, reinterpreted_batch_rank: int) -> None:
        if not isinstance(base, Distribution):
            raise TypeError(f"base must be a Distribution, not {type(base).__name__}")
        rank = reinterpreted_batch_rank
        if not 0 < rank <= len(base.batch_shape):
            raise ValueError(f"reinterpreted_batch_rank must be from 1 to {len(base.batch_shape)}, not {rank}")
        self._base, self._rank = base, rank
        split = len(base.batch_shape) - rank
        super().__init__(base.batch_shape[:split], base.batch_shape[split:] + base.event_shape)

    @property
    def mean(self) -> Tensor:
        """That of the base."""
        return self._base.mean

    @property
    def variance(self) -> Tensor:
        """That of the base."""
        return self._base.variance

    def sample(self, shape: Sequence[int] = ()) -> Tensor:
        """Samples of the base."""
        return self._base.sample(shape)

    def rsample(self, shape: Sequence[int] = ()) -> Tensor:
        """Samples of the base, with gradients."""
        return self._base.rsample(shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """The sum over the dimensions of the value."""
        return sum_rightmost(self._base.log_prob(value), self._rank)

    def entropy(self) -> Tensor:
        """The sum over the dimensions of the value."""
        return sum_rightmost(self._base.entropy(), self._rank)
