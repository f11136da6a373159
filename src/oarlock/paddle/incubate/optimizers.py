"""Optimizers around others: weights that look ahead, and their mean over the last steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.optimizer.optimizer import Optimizer


class LookAhead(Optimizer):
    """Every k steps of another optimizer: slow += alpha·(fast - slow), fast = slow (Zhang et al., 2019).

    The slow weights begin as the fast ones after the first step, as in Paddle.

    Args:
        inner_optimizer: makes the fast weights.
        alpha: from 0 to 1.
        k: steps.

    Raises:
        ValueError: `alpha` or `k` outside of that.
    """

    accumulators = ("slow",)

    def __init__(self, inner_optimizer: Optimizer, alpha: float = 0.5, k: int = 5, name: str | None = None) -> None:
        if not 0.0 <= alpha <= 1.0:
            raise ValueError(f"alpha = {alpha}: it should be from 0 to 1")
        if not isinstance(k, int) or k <= 0:
            raise ValueError(f"k = {k!r}: it should be a positive integer")
        super().__init__(alpha, inner_optimizer._parameter_list, name=name)
        self.inner_optimizer, self.alpha, self.k = inner_optimizer, alpha, k
        self._num_steps = 0

    def _first(self, name: str, weight: Tensor) -> Tensor:
        return weight.detach().clone()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """A step of the inner optimizer; every k-th also moves the slow weights, and the fast ones there."""
        result = self.inner_optimizer.step(closure)
        self._num_steps += 1
        for parameter in self._parameter_list:
            if parameter.grad is None or not parameter.requires_grad:
                continue
            slow = self._state(parameter, parameter)["slow"]
            if self._num_steps % self.k == 0:
                slow.lerp_(parameter, self.alpha)
                parameter.copy_(slow)
        return result


class ModelAverage(Optimizer):
    """The mean of a model's weights over the last steps, to evaluate with.

    The window is `average_window_rate` of all steps, from `min_average_window` to `max_average_window`; when it is
    full, what it holds is kept as the older half, and the next begins.

    Args:
        parameters: of the model.
    """

    def __init__(
        self,
        average_window_rate: float,
        parameters: Any = None,
        min_average_window: int = 10000,
        max_average_window: int = 10000,
        name: str | None = None,
    ) -> None:
        super().__init__(0.0, parameters, name=name)
        self.average_window = average_window_rate
        self.min_average_window, self.max_average_window = min_average_window, max_average_window
        self._sums: dict[Tensor, _Window] = {}
        self._kept: dict[Tensor, Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Count the weights of all parameters that have gradients; to be called after the optimizer's own step."""
        for parameter in self._parameter_list:
            if parameter.grad is not None and parameter.requires_grad:
                window = self._sums.setdefault(parameter, _Window(parameter))
                window.add(parameter)
                most = min(self.max_average_window, int(window.num_updates * self.average_window))
                if window.num_new >= max(self.min_average_window, most):
                    window.turn()
        return None

    @contextmanager
    def apply(self, executor: Any = None, need_restore: bool = True) -> Iterator[None]:
        """Within the block the parameters are their means; after it they are as before, if `need_restore`."""
        with torch.no_grad():
            for parameter, window in self._sums.items():
                self._kept[parameter] = parameter.detach().clone()
                parameter.copy_(window.mean())
        try:
            yield
        finally:
            if need_restore:
                self.restore()

    @torch.no_grad()
    def restore(self, executor: Any = None) -> None:
        """The parameters as they were before `apply`."""
        for parameter, value in self._kept.items():
            parameter.copy_(value)
        self._kept.clear()


class _Window:
    def __init__(self, parameter: Tensor) -> None:
        self.new, self.old = torch.zeros_like(parameter), torch.zeros_like(parameter)
        self.num_new = self.num_old = self.num_updates = 0

    def add(self, parameter: Tensor) -> None:
        self.new += parameter
        self.num_new += 1
        self.num_updates += 1

    def turn(self) -> None:
        self.old, self.new = self.new, torch.zeros_like(self.new)
        self.num_old, self.num_new = self.num_new, 0

    def mean(self) -> Tensor:
        return (self.new + self.old) / (self.num_new + self.num_old)
