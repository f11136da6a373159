"""Penalties that are added to gradients."""

from __future__ import annotations

from torch import Tensor


class L2Decay:
    """coeff * w in the gradient: the penalty coeff / 2 * |w|^2 in the loss."""

    def __init__(self, coeff: float = 0.0) -> None:
        self.coeff = coeff

    def __str__(self) -> str:
        return f"L2Decay, coeff={self.coeff:f}"

    def penalty(self, weight: Tensor) -> Tensor:
        """What is added to the gradient."""
        return weight * self.coeff


class L1Decay:
    """coeff * sign(w) in the gradient: the penalty coeff * |w| in the loss."""

    def __init__(self, coeff: float = 0.0) -> None:
        self.coeff = coeff

    def __str__(self) -> str:
        return f"L1Decay, coeff={self.coeff:f}"

    def penalty(self, weight: Tensor) -> Tensor:
        """What is added to the gradient."""
        return weight.sign() * self.coeff
