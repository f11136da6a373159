"""The optimizers that are seldom used: ASGD, NAdam, RAdam, Rprop and LBFGS, by Paddle's formulas.

Their running values are tensors of the weights' shapes, as in Paddle's state dicts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.optimizer.kinds import Rate, lists
from oarlock.paddle.optimizer.optimizer import Batch, Optimizer


class ASGD(Optimizer):
    """The average of the last gradients of `batch_num` batches: d += g - y_i; y_i = g; w -= lr * d / min(t, batch_num).

    Step t has i = (t - 1) mod batch_num. Source: Schmidt, Le Roux and Bach, 2017.
    """

    accumulators = ("d", "y", "m")

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        batch_num: int = 1,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        multi_precision: bool = False,
        name: str | None = None,
    ) -> None:
        if batch_num is None or batch_num < 1:
            raise ValueError(f"batch_num should be a positive number of batches, got {batch_num}")
        self._batch_num = batch_num
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, name, multi_precision)

    def _first(self, name: str, weight: Tensor) -> Tensor:
        if name == "d":
            return torch.zeros_like(weight)
        if name == "y":
            return weight.new_zeros([self._batch_num, *weight.shape])
        return torch.zeros(1, dtype=torch.int64)  # steps: on the CPU, where it is read

    def _update(self, batch: Batch) -> None:
        for weight, gradient, total, last, steps in zip(
            batch.weights, batch.grads, *self._lists(batch, *self.accumulators), strict=True
        ):
            taken = int(steps)
            before = last[taken % self._batch_num]
            total.add_(gradient).sub_(before)
            before.copy_(gradient)
            steps += 1
            weight.add_(total, alpha=-batch.lr / min(taken + 1, self._batch_num))


class NAdam(Optimizer):
    """Adam with Nesterov's momentum.

    mu_t = b1 * (1 - 0.96^(t * momentum_decay) / 2); P_t = mu_1 * ... * mu_t; m, v as Adam's;
    w -= lr * (mu_{t+1} / (1 - P_{t+1}) * m + (1 - mu_t) / (1 - P_t) * g) / (sqrt(v / (1 - b2^t)) + eps).

    Source: Dozat, 2016.
    """

    accumulators = ("momentum_decay_pow", "beta2_pow", "mu_product", "moment1", "moment2")
    options = ("beta1", "beta2", "epsilon", "momentum_decay")

    def __init__(
        self,
        learning_rate: Rate = 0.002,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1.0e-8,
        momentum_decay: float = 0.004,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        self._beta1, self._beta2, self._epsilon = _betas(beta1, beta2, epsilon)
        self._momentum_decay = momentum_decay
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, name)

    def _first(self, name: str, weight: Tensor) -> Tensor:
        return torch.zeros_like(weight) if name.startswith("moment") and name[-1] in "12" else torch.ones_like(weight)

    def _update(self, batch: Batch) -> None:
        decay, power, product, first, second = self._lists(batch, *self.accumulators)
        lists._foreach_mul_(decay, 0.96)
        lists._foreach_mul_(power, self._beta2)
        lists._foreach_lerp_(first, batch.grads, 1 - self._beta1)
        lists._foreach_mul_(second, self._beta2)
        lists._foreach_addcmul_(second, batch.grads, batch.grads, 1 - self._beta2)
        for i, (weight, gradient) in enumerate(zip(batch.weights, batch.grads, strict=True)):
            now = self._beta1 * (1 - 0.5 * decay[i] ** self._momentum_decay)
            following = self._beta1 * (1 - 0.5 * 0.96**self._momentum_decay * decay[i] ** self._momentum_decay)
            product[i].mul_(now)
            moved = following * first[i] / (1 - product[i] * following) + (1 - now) * gradient / (1 - product[i])
            weight.sub_(batch.lr * moved / ((second[i] / (1 - power[i])).sqrt() + self._epsilon))


class RAdam(Optimizer):
    """Adam whose second moment is used once its variance is known well enough.

    R = 2 / (1 - b2) - 1; r_t = R - 2 t b2^t / (1 - b2^t); m^ = m / (1 - b1^t);
    r_t > 5: w -= lr * m^ * sqrt((r_t - 4)(r_t - 2) R / ((R - 4)(R - 2) r_t)) * sqrt(1 - b2^t) / (sqrt(v) + eps);
    else: w -= lr * m^. Source: Liu et al., 2020.
    """

    accumulators = ("beta1_pow", "beta2_pow", "rho", "moment1", "moment2")
    options = ("beta1", "beta2", "epsilon")

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1.0e-8,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        self._beta1, self._beta2, self._epsilon = _betas(beta1, beta2, epsilon)
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, name)

    def _first(self, name: str, weight: Tensor) -> Tensor:
        return torch.ones_like(weight) if name.endswith("pow") else torch.zeros_like(weight)

    def _update(self, batch: Batch) -> None:
        power1, power2, sums, first, second = self._lists(batch, *self.accumulators)
        most = 2 / (1 - self._beta2) - 1
        lists._foreach_mul_(power1, self._beta1)
        lists._foreach_mul_(power2, self._beta2)
        lists._foreach_lerp_(first, batch.grads, 1 - self._beta1)
        lists._foreach_mul_(second, self._beta2)
        lists._foreach_addcmul_(second, batch.grads, batch.grads, 1 - self._beta2)
        for i, weight in enumerate(batch.weights):
            # t b2^t / (1 - b2^t), from its value of the step before
            sums[i].copy_((sums[i] * (self._beta2 - power2[i]) + power2[i]) / (1 - power2[i]))
            length = most - 2 * sums[i]
            ratio = ((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)).clamp(min=0).sqrt()
            scale = ratio * (1 - power2[i]).sqrt() / (second[i].sqrt() + self._epsilon)
            moved = first[i] / (1 - power1[i])
            weight.sub_(batch.lr * moved * torch.where(length > 5, scale, 1.0))


class Rprop(Optimizer):
    """A step size for each element: times etas[1] while the gradient keeps its sign, times etas[0] where it changes.

    w -= sign(g) * step; where the sign changes, g counts as 0. Steps stay in `learning_rate_range`.
    Source: Riedmiller and Braun, 1993.
    """

    accumulators = ("prevs", "learning_rates")

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        learning_rate_range: tuple[float, float] = (1e-5, 50),
        parameters: Any = None,
        etas: tuple[float, float] = (0.5, 1.2),
        grad_clip: Any = None,
        multi_precision: bool = False,
        name: str | None = None,
    ) -> None:
        low, high = learning_rate_range
        if not isinstance(learning_rate, (int, float)) or not 0.0 < low <= learning_rate <= high:
            raise ValueError(f"0 < {low} <= {learning_rate} <= {high} must hold: learning_rate_range, learning_rate")
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ValueError(f"etas = {etas}: 0 < etas[0] < 1 < etas[1]")
        self._range, self._etas = learning_rate_range, etas
        super().__init__(learning_rate, parameters, None, grad_clip, name, multi_precision)

    def _first(self, name: str, weight: Tensor) -> Tensor:
        return torch.zeros_like(weight) if name == "prevs" else torch.full_like(weight, self.get_lr())

    def _update(self, batch: Batch) -> None:
        for weight, gradient, last, rate in zip(
            batch.weights, batch.grads, *self._lists(batch, *self.accumulators), strict=True
        ):
            turn = gradient * last
            rate.mul_(torch.where(turn > 0, self._etas[1], torch.where(turn < 0, self._etas[0], 1.0)))
            rate.clamp_(*self._range)
            kept = torch.where(turn < 0, 0.0, gradient)
            weight.sub_(kept.sign() * rate)
            last.copy_(kept)


class LBFGS(Optimizer):
    """Quasi-Newton steps from the last `history_size` changes; `step(closure)` may call the closure many times.

    Args:
        max_iter, max_eval: of a call of `step`; max_eval is max_iter * 5 / 4 by default.
        tolerance_grad, tolerance_change: it stops at gradients, or changes, this small.
        line_search_fn: None or "strong_wolfe".

    Source: Nocedal and Wright, Numerical Optimization, 2006, algorithm 7.5; torch.optim.LBFGS computes it.
    """

    def __init__(
        self,
        learning_rate: float = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, name)
        self._solver = torch.optim.LBFGS(
            self._parameter_list, learning_rate, max_iter, max_eval, tolerance_grad, tolerance_change, history_size,
            line_search_fn,
        )  # fmt: skip

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Minimise for a while; the loss at the start.

        Args:
            closure: clears the gradients, computes the loss, calls its `backward` and returns it.
        """
        if closure is None:
            raise TypeError("LBFGS.step needs a closure, which it calls again and again")
        self._solver.param_groups[0]["lr"] = self.get_lr()
        return self._solver.step(closure)

    def state_dict(self) -> dict[str, Any]:
        """The history of changes, by Paddle's names."""
        found = dict(self._solver.state[self._parameter_list[0]])
        return {"state": {_OF_LBFGS.get(name, name): value for name, value in found.items()}}

    def set_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from there."""
        names = {paddle: own for own, paddle in _OF_LBFGS.items()}
        self._solver.state[self._parameter_list[0]] = {
            names.get(name, name): value for name, value in state_dict["state"].items()
        }

    set_dict = load_state_dict = set_state_dict


_OF_LBFGS = {"t": "alpha", "old_dirs": "old_yk", "old_stps": "old_sk"}


def _betas(beta1: float, beta2: float, epsilon: float) -> tuple[float, float, float]:
    for what, value in (("beta1", beta1), ("beta2", beta2)):
        if not 0 <= value < 1:
            raise ValueError(f"Invalid value of {what}, expect {what} in [0,1), got {value}")
    if epsilon < 0:
        raise ValueError(f"Invalid value of epsilon, expect epsilon >= 0, got {epsilon}")
    return beta1, beta2, epsilon
