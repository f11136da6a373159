"""Transforms made of others: one after another, over more dimensions, side by side; and of a value's shape."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.distribution.transforms import Transform


def _checked(transforms: Any) -> list[Transform]:
    found = list(transforms)
    if not found or not all(isinstance(t, Transform) for t in found):
        raise TypeError("transforms must be a sequence of Transform, of at least one")
    return found


class ChainTransform(Transform):
    """The first transform, then the second on its result, and so on."""

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self.transforms = _checked(transforms)
        before = after = 0  # dimensions of a value that come into the chain, and that are there now
        for t in self.transforms:
            missing = max(t.domain_rank - after, 0)
            before, after = before + missing, after + missing + t.codomain_rank - t.domain_rank
        self.domain_rank, self.codomain_rank = before, after

    def _forward(self, x: Tensor) -> Tensor:
        for t in self.transforms:
            x = t.forward(x)
        return x

    def _inverse(self, y: Tensor) -> Tensor:
        for t in reversed(self.transforms):
            y = t.inverse(y)
        return y

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        rank, made = self.domain_rank, None
        for t in self.transforms:
            change = t.spread_log_det(x, rank - t.domain_rank)
            made = change if made is None else made + change
            rank += t.codomain_rank - t.domain_rank
            x = t.forward(x)
        assert made is not None
        return made

    def _forward_shape(self, shape: tuple[int, ...]) -> Sequence[int]:
        for t in self.transforms:
            shape = tuple(t.forward_shape(shape))
        return shape

    def _inverse_shape(self, shape: tuple[int, ...]) -> Sequence[int]:
        for t in reversed(self.transforms):
            shape = tuple(t.inverse_shape(shape))
        return shape


class IndependentTransform(Transform):
    """`base`, with `reinterpreted_batch_rank` dimensions of the batch taken for dimensions of a value."""

    def __init__(self, base: Transform, reinterpreted_batch_rank: int) -> None:
        if not isinstance(base, Transform):
            raise TypeError(f"base must be a Transform, not {type(base).__name__}")
        if reinterpreted_batch_rank < 1:
            raise ValueError(f"reinterpreted_batch_rank must be at least 1, not {reinterpreted_batch_rank}")
        self._base, self._rank = base, reinterpreted_batch_rank
        self.domain_rank, self.codomain_rank = base.domain_rank + self._rank, base.codomain_rank + self._rank

    def _forward(self, x: Tensor) -> Tensor:
        return self._base.forward(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._base.inverse(y)

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        return self._base.spread_log_det(x, self._rank)

    def _forward_shape(self, shape: tuple[int, ...]) -> Sequence[int]:
        return self._base.forward_shape(shape)

    def _inverse_shape(self, shape: tuple[int, ...]) -> Sequence[int]:
        return self._base.inverse_shape(shape)


class ReshapeTransform(Transform):
    """A value of `in_event_shape` in `out_event_shape`."""

    def __init__(self, in_event_shape: Sequence[int], out_event_shape: Sequence[int]) -> None:
        self._in, self._out = tuple(in_event_shape), tuple(out_event_shape)
        if math.prod(self._in) != math.prod(self._out):
            raise ValueError(f"{list(self._in)} and {list(self._out)} have different numbers of elements")
        self.domain_rank, self.codomain_rank = len(self._in), len(self._out)

    @property
    def in_event_shape(self) -> tuple[int, ...]:
        """The shape of x."""
        return self._in

    @property
    def out_event_shape(self) -> tuple[int, ...]:
        """The shape of y."""
        return self._out

    def _forward(self, x: Tensor) -> Tensor:
        return x.reshape(tuple(self.forward_shape(x.shape)))

    def _inverse(self, y: Tensor) -> Tensor:
        return y.reshape(tuple(self.inverse_shape(y.shape)))

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        return torch.zeros(x.shape[: x.ndim - len(self._in)], dtype=x.dtype, device=x.device)

    def _forward_shape(self, shape: tuple[int, ...]) -> Sequence[int]:
        return _replaced(shape, self._in, self._out)

    def _inverse_shape(self, shape: tuple[int, ...]) -> Sequence[int]:
        return _replaced(shape, self._out, self._in)


def _replaced(shape: tuple[int, ...], old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    split = len(shape) - len(old)
    if split < 0 or shape[split:] != old:
        raise ValueError(f"a shape that ends in {list(old)} was expected, not {list(shape)}")
    return shape[:split] + new


class StackTransform(Transform):
    """Transforms side by side: the i-th takes the i-th slice along `axis`."""

    def __init__(self, transforms: Sequence[Transform], axis: int = 0) -> None:
        self._transforms, self._axis = _checked(transforms), int(axis)
        ranks = [(t.domain_rank, t.codomain_rank) for t in self._transforms]
        self.domain_rank, self.codomain_rank = max(a for a, _ in ranks), max(b for _, b in ranks)

    @property
    def transforms(self) -> list[Transform]:
        """The transforms."""
        return self._transforms

    @property
    def axis(self) -> int:
        """The dimension along which they stand."""
        return self._axis

    def _slices(self, x: Tensor) -> list[tuple[Transform, Tensor]]:
        if not -x.ndim <= self._axis < x.ndim or x.shape[self._axis] != len(self._transforms):
            size, count = list(x.shape), len(self._transforms)
            raise ValueError(f"{count} transforms need {count} slices along axis {self._axis}, not the shape {size}")
        return list(zip(self._transforms, x.unbind(self._axis), strict=True))

    def _forward(self, x: Tensor) -> Tensor:
        return torch.stack([t.forward(part) for t, part in self._slices(x)], self._axis)

    def _inverse(self, y: Tensor) -> Tensor:
        return torch.stack([t.inverse(part) for t, part in self._slices(y)], self._axis)

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        return torch.stack([t.spread_log_det(part, 0).expand_as(part) for t, part in self._slices(x)], self._axis)
