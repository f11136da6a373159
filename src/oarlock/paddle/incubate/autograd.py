"""Products with derivatives, and whole matrices of them that are computed when they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.autograd.backward import jacobian

__all__ = ["Hessian", "Jacobian", "jvp", "vjp"]


def vjp(func: Callable[..., Any], xs: Any, v: Any = None) -> tuple[Any, Any]:
    """`func(*xs)`, and vᵀ·J: the gradients of the sum of its results, each times its `v` (ones by default).

    Args:
        func: takes tensors, gives one or several.
        xs: a tensor, or several.
        v: as the results of `func`.

    Returns:
        (results, one gradient for each of `xs`; both lone where they were given so).
    """
    inputs = [x.detach().requires_grad_() for x in _several(xs)]
    results = func(*inputs)
    outputs = _several(results)
    weights = [torch.ones_like(y) for y in outputs] if v is None else _several(v)
    found = torch.autograd.grad(outputs, inputs, weights, allow_unused=True, materialize_grads=True)
    return _detached(results), found[0] if isinstance(xs, Tensor) else list(found)


def jvp(func: Callable[..., Any], xs: Any, v: Any = None) -> tuple[Any, Any]:
    """`func(*xs)`, and J·v: how its results change along `v` (ones by default), by forward differentiation."""
    inputs = tuple(x.detach() for x in _several(xs))
    tangents = tuple(torch.ones_like(x) for x in inputs) if v is None else tuple(_several(v))
    found = torch.func.jvp(func, inputs, tangents)
    return found[0], found[1]


class Jacobian:
    """d func / d xs as [M, N], or [B, M, N] with `is_batched`; several inputs lie side by side, several results below
    each other. An index reads from it: `J[:]`, `J[0, :]`.
    """

    def __init__(self, func: Callable[..., Any], xs: Any, is_batched: bool = False) -> None:
        inputs = [x.detach().requires_grad_() for x in _several(xs)]
        axis = 0 if is_batched else None
        start = 1 if is_batched else 0
        outputs = [y.reshape(*y.shape[:start], -1) for y in _several(func(*inputs))]
        rows = [torch.cat([jacobian(y, x, axis) for x in inputs], -1) for y in outputs]
        self._matrix = torch.cat(rows, -2).detach()

    def __getitem__(self, index: Any) -> Tensor:
        return self._matrix[index]

    @property
    def shape(self) -> list[int]:
        """[M, N] or [B, M, N]."""
        return list(self._matrix.shape)


class Hessian(Jacobian):
    """Second derivatives of a scalar (of one number per sample with `is_batched`) as [N, N] or [B, N, N]."""

    def __init__(self, func: Callable[..., Any], xs: Any, is_batched: bool = False) -> None:
        def first(*inputs: Tensor) -> Any:
            found = torch.autograd.grad(func(*inputs).sum(), inputs, create_graph=True, materialize_grads=True)
            return torch.cat([each.reshape(*each.shape[: int(is_batched)], -1) for each in found], -1)

        super().__init__(first, xs, is_batched)


def _several(values: Any) -> Sequence[Any]:
    return [values] if isinstance(values, Tensor) else list(values)


def _detached(values: Any) -> Any:
    return values.detach() if isinstance(values, Tensor) else type(values)(each.detach() for each in values)
