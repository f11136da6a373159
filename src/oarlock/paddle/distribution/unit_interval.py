"""Distributions of shares: of numbers between 0 and 1, of several that sum to 1, of correlations."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch import distributions as torchs

from oarlock.paddle.distribution.distribution import ExponentialFamily, OnTorch
from oarlock.paddle.distribution.parameters import parameters
from oarlock.paddle.dtypes import as_ints


class Beta(OnTorch, ExponentialFamily):
    """`x^(alpha-1)·(1 - x)^(beta-1) / B(alpha, beta)`."""

    def __init__(self, alpha: Any, beta: Any) -> None:
        self.alpha, self.beta = parameters(alpha, beta)
        self._start()

    def _engine(self) -> torchs.Beta:
        return torchs.Beta(*torch.broadcast_tensors(self.alpha, self.beta), validate_args=False)


class Dirichlet(OnTorch, ExponentialFamily):
    """`prod x_i^(a_i-1) / B(a)` of shares [..., k] with `concentration` a, [..., k]."""

    def __init__(self, concentration: Tensor) -> None:
        (self.concentration,) = parameters(concentration)
        if self.concentration.ndim < 1:
            raise ValueError("concentration must have at least one dimension")
        self._start()

    def _engine(self) -> torchs.Dirichlet:
        return torchs.Dirichlet(self.concentration, validate_args=False)


class ContinuousBernoulli(OnTorch):
    """`C(p)·p^x·(1 - p)^(1-x)` for x from 0 to 1, with the constant C(p) that makes it a density.

    Args:
        probs: p, of any shape; a number is of shape [1].
        lims: between these, where C(p) loses its digits, it is taken from its series at 1/2.
    """

    def __init__(self, probs: Any, lims: tuple[float, float] = (0.499, 0.501)) -> None:
        (found,) = parameters(probs)
        self.probs = found.reshape(1) if not isinstance(probs, Tensor) and found.ndim == 0 else found
        self.lims = lims
        self._start()

    def _engine(self) -> torchs.ContinuousBernoulli:
        return torchs.ContinuousBernoulli(self.probs, lims=self.lims, validate_args=False)


class LKJCholesky(OnTorch):
    """Lower Cholesky factors L of correlation matrices, with a density proportional to `det(L·L')^(concentration-1)`.

    Args:
        dim: the rows of the matrix, at least 2.
        concentration: 1 for uniform correlation matrices, more for weaker correlations; of any shape.
        sample_method: "onion" draws a row at a time, "cvine" from partial correlations; of one distribution both.
    """

    def __init__(
        self, dim: int = 2, concentration: Any = 1.0, sample_method: Literal["onion", "cvine"] = "onion"
    ) -> None:
        if dim < 2:
            raise ValueError(f"dim must be at least 2, not {dim}")
        if sample_method not in ("onion", "cvine"):
            raise ValueError(f"sample_method must be 'onion' or 'cvine', not {sample_method!r}")
        self.dim, self.sample_method = dim, sample_method
        (self.concentration,) = parameters(concentration)
        self._start()

    def _engine(self) -> torchs.LKJCholesky:
        return torchs.LKJCholesky(self.dim, self.concentration, validate_args=False)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:  # type: ignore[override]
        """Factors [*sample_shape, *batch_shape, dim, dim]."""
        draw = self._by_rows if self.sample_method == "onion" else self._from_partial_correlations
        with torch.no_grad():
            return draw(torch.Size(as_ints(sample_shape)))

    def _by_rows(self, shape: torch.Size) -> Tensor:
        """Row i is `sqrt(y)` in a direction that is uniform on the sphere, and `sqrt(1 - y)` on the diagonal.

        y is drawn from `Beta(i / 2, concentration + (dim - 1 - i) / 2)`. Torch and Paddle 3.3.1 draw it from another
        one: the correlations of their later rows are too strong.
        """
        dim, like = self.dim, self.concentration
        rows = torch.arange(1, dim, dtype=like.dtype, device=like.device)
        b = like[..., None] + (dim - 1 - rows) / 2
        y = torchs.Beta((rows / 2).expand_as(b), b, validate_args=False).sample(shape)
        direction = torch.randn(*y.shape, dim - 1, dtype=like.dtype, device=like.device).tril()
        made = y.new_zeros(*y.shape[:-1], dim, dim)
        made[..., 0, 0] = 1
        made[..., 1:, :-1] = y.sqrt()[..., None] * torch.nn.functional.normalize(direction, dim=-1)
        return made + torch.diag_embed(torch.nn.functional.pad((1 - y).sqrt(), [1, 0]))

    def _from_partial_correlations(self, shape: torch.Size) -> Tensor:
        """`L_ij = p_ij·sqrt(prod_{k<j} (1 - p_ik^2))`; the p of column j are `2·Beta(b, b) - 1`.

        b is `concentration + (dim - 2 - j) / 2`.
        """
        dim, like = self.dim, self.concentration
        columns = torch.arange(dim, dtype=like.dtype, device=like.device)
        b = (like[..., None] + (dim - 2 - columns) / 2)[..., None, :].expand(*self._batch_shape, dim, dim)
        lower = torch.ones(dim, dim, dtype=torch.bool, device=like.device).tril(-1)
        b = torch.where(lower, b, 1.0)
        partial = (2 * torchs.Beta(b, b, validate_args=False).sample(shape) - 1) * lower
        left = (1 - partial**2).cumprod(-1).sqrt()  # of each row, what the columns up to this one leave
        before = torch.cat([torch.ones_like(left[..., :1]), left[..., :-1]], -1)
        return partial * before + torch.diag_embed(torch.diagonal(before, dim1=-2, dim2=-1))
