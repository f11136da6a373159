"""Transforms of random variables with the logarithms of their Jacobian determinants."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.paddle.distribution.parameters import Plain, parameters, sum_rightmost
from oarlock.paddle.dtypes import as_ints


class Transform(Plain):
    """`y = f(x)`. A subclass gives `_forward`, `_inverse` and one of the two `_..._log_det_jacobian`.

    `domain_rank` and `codomain_rank` are the dimensions of one x and one y; those before are a batch.
    """

    domain_rank = 0
    codomain_rank = 0

    def __call__(self, input: Any) -> Any:
        """Of a tensor, `f(x)`; of a distribution, that of f(x); of a transform, first this one and then that."""
        from oarlock.paddle.distribution.distribution import Distribution
        from oarlock.paddle.distribution.transformed_distribution import TransformedDistribution
        from oarlock.paddle.distribution.transforms_of_transforms import ChainTransform

        if isinstance(input, Distribution):
            return TransformedDistribution(input, [self])
        if isinstance(input, Transform):
            return ChainTransform([self, input])
        return self.forward(input)

    def forward(self, x: Tensor) -> Tensor:
        """`f(x)`."""
        self._check(x, self.domain_rank)
        return self._forward(x)

    def inverse(self, y: Tensor) -> Any:
        """`f^-1(y)`; where two x have that y, both of them."""
        self._check(y, self.codomain_rank)
        return self._inverse(y)

    def forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        """`log|det df/dx|` at x.

        Raises:
            NotImplementedError: the transform is no injection, or has no such formula.
        """
        self._check(x, self.domain_rank)
        ahead, back = (getattr(self, f"_{way}_log_det_jacobian", None) for way in ("forward", "inverse"))
        if ahead:
            return ahead(x)
        if back and not isinstance(self, AbsTransform):
            return -back(self.forward(x))
        raise NotImplementedError(f"{type(self).__name__} has no Jacobian determinant")

    def inverse_log_det_jacobian(self, y: Tensor) -> Any:
        """`log|det dx/dy|` at y."""
        self._check(y, self.codomain_rank)
        ahead, back = (getattr(self, f"_{way}_log_det_jacobian", None) for way in ("forward", "inverse"))
        if back:
            return back(y)
        if ahead:
            return -ahead(self.inverse(y))
        raise NotImplementedError(f"{type(self).__name__} has no Jacobian determinant")

    def forward_shape(self, shape: Sequence[int]) -> Sequence[int]:
        """The shape of f(x) for x of a shape."""
        return self._forward_shape(tuple(as_ints(shape)))

    def inverse_shape(self, shape: Sequence[int]) -> Sequence[int]:
        """The shape of x for f(x) of a shape."""
        return self._inverse_shape(tuple(as_ints(shape)))

    def spread_log_det(self, x: Tensor, rank: int) -> Tensor:
        """`forward_log_det_jacobian(x)`, summed over `rank` dimensions more than the transform has."""
        found = self.forward_log_det_jacobian(x)
        if rank == 0:
            return found
        return sum_rightmost(found.expand(x.shape[: x.ndim - self.domain_rank]), rank)

    def _forward_shape(self, shape: tuple[int, ...]) -> Sequence[int]:
        return shape

    def _inverse_shape(self, shape: tuple[int, ...]) -> Sequence[int]:
        return shape

    def _forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def _inverse(self, y: Tensor) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no inverse")

    def _check(self, x: Any, rank: int) -> None:
        if not isinstance(x, Tensor):
            raise TypeError(f"{type(self).__name__} takes a tensor, not {type(x).__name__}")
        if x.ndim < rank:
            raise ValueError(f"{type(self).__name__} takes {rank} dimensions at least, not the shape {list(x.shape)}")


class AbsTransform(Transform):
    """`y = |x|`; the inverse is the pair -y and y."""

    def _forward(self, x: Tensor) -> Tensor:
        return x.abs()

    def _inverse(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return -y, y

    def _inverse_log_det_jacobian(self, y: Tensor) -> tuple[Tensor, Tensor]:
        zero = torch.zeros((), dtype=y.dtype, device=y.device)
        return zero, zero


class AffineTransform(Transform):
    """`y = loc + scale·x`."""

    def __init__(self, loc: Any, scale: Any) -> None:
        self._loc, self._scale = parameters(loc, scale)

    @property
    def loc(self) -> Tensor:
        """What is added."""
        return self._loc

    @property
    def scale(self) -> Tensor:
        """The factor."""
        return self._scale

    def _forward(self, x: Tensor) -> Tensor:
        return self._loc + self._scale * x

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self._loc) / self._scale

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        return self._scale.abs().log()

    def _forward_shape(self, shape: tuple[int, ...]) -> Sequence[int]:
        return torch.broadcast_shapes(shape, self._loc.shape, self._scale.shape)

    _inverse_shape = _forward_shape


class ExpTransform(Transform):
    """`y = exp(x)`."""

    def _forward(self, x: Tensor) -> Tensor:
        return x.exp()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        return x


class PowerTransform(Transform):
    """`y = x^power` of positive numbers."""

    def __init__(self, power: Any) -> None:
        (self._power,) = parameters(power)

    @property
    def power(self) -> Tensor:
        """The exponent."""
        return self._power

    def _forward(self, x: Tensor) -> Tensor:
        return x**self._power

    def _inverse(self, y: Tensor) -> Tensor:
        return y ** (1 / self._power)

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        return (self._power * x ** (self._power - 1)).abs().log()

    def _forward_shape(self, shape: tuple[int, ...]) -> Sequence[int]:
        return torch.broadcast_shapes(shape, self._power.shape)

    _inverse_shape = _forward_shape


class SigmoidTransform(Transform):
    """`y = 1 / (1 + exp(-x))`."""

    def _forward(self, x: Tensor) -> Tensor:
        return x.sigmoid()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log() - (-y).log1p()

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        return -F.softplus(-x) - F.softplus(x)


class TanhTransform(Transform):
    """`y = tanh(x)`."""

    def _forward(self, x: Tensor) -> Tensor:
        return x.tanh()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.atanh()

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        return 2 * (math.log(2) - x - F.softplus(-2 * x))


class SoftmaxTransform(Transform):
    """Shares `softmax(x)`; the inverse is the logarithm, one of many."""

    domain_rank = codomain_rank = 1

    def _forward(self, x: Tensor) -> Tensor:
        return x.softmax(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()


class StickBreakingTransform(Transform):
    """k numbers to k + 1 shares: each takes a part of what those before it left."""

    domain_rank = codomain_rank = 1

    @staticmethod
    def _offsets(count: int, like: Tensor) -> Tensor:
        """The logarithms of k, k - 1, ..., 1: zeros then give equal shares."""
        return torch.arange(count, 0, -1, dtype=like.dtype, device=like.device).log()

    def _forward(self, x: Tensor) -> Tensor:
        z = (x - self._offsets(x.shape[-1], x)).sigmoid()
        return F.pad(z, [0, 1], value=1.0) * F.pad((1 - z).cumprod(-1), [1, 0], value=1.0)

    def _inverse(self, y: Tensor) -> Tensor:
        parts = y[..., :-1]
        return parts.log() - (1 - parts.cumsum(-1)).log() + self._offsets(parts.shape[-1], y)

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        moved = x - self._offsets(x.shape[-1], x)
        return (F.logsigmoid(moved) - moved + self._forward(x)[..., :-1].log()).sum(-1)

    def _forward_shape(self, shape: tuple[int, ...]) -> Sequence[int]:
        return (*shape[:-1], shape[-1] + 1)

    def _inverse_shape(self, shape: tuple[int, ...]) -> Sequence[int]:
        return (*shape[:-1], shape[-1] - 1)
