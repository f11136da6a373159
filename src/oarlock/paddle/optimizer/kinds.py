"""The optimizers. Where Paddle's formula differs from torch's of the same name, it is Paddle's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.optimizer.lr import LRScheduler
from oarlock.paddle.optimizer.optimizer import Batch, Optimizer

lists: Any = torch  # its operations on lists of tensors are not in its stubs

Rate = float | LRScheduler


class SGD(Optimizer):
    """w -= lr * g."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        multi_precision: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, name, multi_precision)

    def _update(self, batch: Batch) -> None:
        lists._foreach_add_(batch.weights, batch.grads, alpha=-batch.lr)


class Momentum(Optimizer):
    """v = momentum * v + g; w -= lr * v, or with `use_nesterov` lr * (g + momentum * v)."""

    accumulators = ("velocity",)
    options = ("momentum", "use_nesterov", "rescale_grad")

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        momentum: float = 0.9,
        parameters: Any = None,
        use_nesterov: bool = False,
        weight_decay: Any = None,
        grad_clip: Any = None,
        multi_precision: bool = False,
        rescale_grad: float = 1.0,
        use_multi_tensor: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, name, multi_precision)
        self._momentum, self._use_nesterov, self._rescale_grad = momentum, use_nesterov, rescale_grad

    def _update(self, batch: Batch) -> None:
        (velocity,) = self._lists(batch, "velocity")
        scale = self._rescale_grad
        grads = batch.grads if scale == 1.0 else lists._foreach_mul(batch.grads, scale)
        lists._foreach_mul_(velocity, self._momentum)
        lists._foreach_add_(velocity, grads)
        if self._use_nesterov:
            lists._foreach_add_(
                batch.weights, lists._foreach_add(grads, velocity, alpha=self._momentum), alpha=-batch.lr
            )
        else:
            lists._foreach_add_(batch.weights, velocity, alpha=-batch.lr)


class Adam(Optimizer):
    """m, v: moving averages of g and g^2; w -= lr * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps * sqrt(1 - b2^t)).

    Args:
        lazy_mode: of a parameter with a sparse gradient only the rows in it change, their moments too.

    Source: Kingma and Ba, 2015.
    """

    accumulators = ("moment1", "moment2")
    options = ("beta1", "beta2", "epsilon", "lazy_mode")
    scalars = (("beta1_pow_acc", "_beta1"), ("beta2_pow_acc", "_beta2"))

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: float = 1e-8,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        lazy_mode: bool = False,
        multi_precision: bool = False,
        use_multi_tensor: bool = False,
        amsgrad: bool = False,
        name: str | None = None,
    ) -> None:
        for what, value in (("beta1", beta1), ("beta2", beta2)):
            if not 0 <= float(value) < 1:
                raise ValueError(f"Invalid value of {what}, expect {what} in [0,1), got {value}")
        self._beta1, self._beta2, self._epsilon, self._amsgrad = float(beta1), float(beta2), epsilon, amsgrad
        self._lazy_mode = lazy_mode
        if amsgrad:
            self.accumulators = (*self.accumulators, "moment2_max")
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, name, multi_precision)

    def _update(self, batch: Batch) -> None:
        first, second = self._lists(batch, "moment1", "moment2")
        step = self._states[batch.params[0]]["beta1_pow_acc"] + 1
        for parameter in batch.params:
            self._states[parameter].update(beta1_pow_acc=step, beta2_pow_acc=step)
        largest = self._lists(batch, "moment2_max")[0] if self._amsgrad else []
        if not batch.grads[0].is_sparse:
            self._move(batch, batch.weights, batch.grads, first, second, largest, step)
            return
        rows, gradient = batch.grads[0].indices()[0], batch.grads[0].values()
        whole = [batch.weights[0], first[0], second[0], *largest]
        weight, m, v, *top = picked = [tensor[rows] for tensor in whole]
        self._move(batch, [weight], [gradient], [m], [v], top, step)
        for tensor, new in zip(whole, picked, strict=True):
            tensor[rows] = new

    def _takes_rows(self, parameter: Tensor) -> bool:
        return self._lazy_mode and (self.decays_itself or not self.regularization)

    def _move(
        self,
        batch: Batch,
        weights: list[Tensor],
        grads: list[Tensor],
        first: list[Tensor],
        second: list[Tensor],
        largest: list[Tensor],
        step: int,
    ) -> None:
        lists._foreach_lerp_(first, grads, 1 - self._beta1)
        lists._foreach_mul_(second, self._beta2)
        lists._foreach_addcmul_(second, grads, grads, 1 - self._beta2)
        if largest:
            lists._foreach_maximum_(largest, second)
            second = largest
        correction = (1 - self._beta2**step) ** 0.5
        if batch.decay:
            lists._foreach_mul_(weights, 1 - batch.lr * batch.decay)
        below = lists._foreach_sqrt(second)
        lists._foreach_add_(below, self._epsilon * correction)
        lists._foreach_addcdiv_(weights, first, below, -batch.lr * correction / (1 - self._beta1**step))


class AdamW(Adam):
    """w *= 1 - lr * weight_decay, then Adam.

    Args:
        use_lowprecision_moment: taken; moments have the dtype of what is changed.
        lr_ratio: called with a parameter: a factor on its learning rate.
        apply_decay_param_fun: called with a parameter's name: whether it decays.

    Source: Loshchilov and Hutter, 2019.
    """

    decays_itself = True

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: float = 1e-8,
        parameters: Any = None,
        weight_decay: float = 0.01,
        use_lowprecision_moment: bool = False,
        lr_ratio: Callable[[Tensor], float] | None = None,
        apply_decay_param_fun: Callable[[str], bool] | None = None,
        grad_clip: Any = None,
        lazy_mode: bool = False,
        multi_precision: bool = False,
        amsgrad: bool = False,
        name: str | None = None,
    ) -> None:
        self._lr_ratio, self._decays = lr_ratio, apply_decay_param_fun
        super().__init__(
            learning_rate, beta1, beta2, epsilon, parameters, weight_decay, grad_clip, lazy_mode, multi_precision,
            amsgrad=amsgrad, name=name,
        )  # fmt: skip

    def _lr_factor(self, parameter: Tensor) -> float:
        return 1.0 if self._lr_ratio is None else self._lr_ratio(parameter)

    def _own_decay(self, parameter: Tensor, group: Mapping[str, Any]) -> float:
        from oarlock.paddle.optimizer.optimizer import _name

        if self._decays is not None and not self._decays(_name(parameter)):
            return 0.0
        return float(group.get("weight_decay", self.regularization) or 0.0)


class Adagrad(Optimizer):
    """s += g^2; w -= lr * g / (sqrt(s) + eps)."""

    accumulators = ("moment",)
    options = ("epsilon",)

    def __init__(
        self,
        learning_rate: Rate,
        epsilon: float = 1.0e-6,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
        initial_accumulator_value: float = 0.0,
    ) -> None:
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, name)
        self._epsilon, self._initial = epsilon, initial_accumulator_value

    def _first(self, name: str, weight: Tensor) -> Tensor:
        return torch.full_like(weight, self._initial)

    def _update(self, batch: Batch) -> None:
        (moment,) = self._lists(batch, "moment")
        lists._foreach_addcmul_(moment, batch.grads, batch.grads)
        below = lists._foreach_sqrt(moment)
        lists._foreach_add_(below, self._epsilon)
        lists._foreach_addcdiv_(batch.weights, batch.grads, below, -batch.lr)


class RMSProp(Optimizer):
    """s = rho s + (1 - rho) g^2; a = momentum a + lr g / sqrt(s + eps); w -= a.

    `centered` subtracts the square of the average gradient from s. Epsilon is under the root, as torch's is not.
    """

    accumulators = ("momentum", "mean_square", "mean_grad")
    options = ("rho", "epsilon", "momentum", "centered")

    def __init__(
        self,
        learning_rate: Rate,
        rho: float = 0.95,
        epsilon: float = 1e-6,
        momentum: float = 0.0,
        centered: bool = False,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, name)
        self._rho, self._epsilon, self._momentum, self._centered = rho, epsilon, momentum, centered

    def _update(self, batch: Batch) -> None:
        moving, square, mean = self._lists(batch, "momentum", "mean_square", "mean_grad")
        lists._foreach_mul_(square, self._rho)
        lists._foreach_addcmul_(square, batch.grads, batch.grads, 1 - self._rho)
        below = lists._foreach_add(square, self._epsilon)
        if self._centered:
            lists._foreach_lerp_(mean, batch.grads, 1 - self._rho)
            lists._foreach_addcmul_(below, mean, mean, -1.0)
        lists._foreach_sqrt_(below)
        lists._foreach_mul_(moving, self._momentum)
        lists._foreach_addcdiv_(moving, batch.grads, below, batch.lr)
        lists._foreach_sub_(batch.weights, moving)


class Adadelta(Optimizer):
    """s = rho s + (1 - rho) g^2; d = sqrt((u + eps) / (s + eps)) g; u = rho u + (1 - rho) d^2; w -= lr d."""

    accumulators = ("_avg_squared_grad", "_avg_squared_update")
    options = ("epsilon", "rho")

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        epsilon: float = 1.0e-6,
        rho: float = 0.95,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, name)
        self._epsilon, self._rho = epsilon, rho

    def _update(self, batch: Batch) -> None:
        square, moved = self._lists(batch, *self.accumulators)
        lists._foreach_mul_(square, self._rho)
        lists._foreach_addcmul_(square, batch.grads, batch.grads, 1 - self._rho)
        ratio = lists._foreach_div(lists._foreach_add(moved, self._epsilon), lists._foreach_add(square, self._epsilon))
        update = lists._foreach_mul(lists._foreach_sqrt(ratio), batch.grads)
        lists._foreach_mul_(moved, self._rho)
        lists._foreach_addcmul_(moved, update, update, 1 - self._rho)
        lists._foreach_add_(batch.weights, update, alpha=-batch.lr)


class Adamax(Optimizer):
    """m as Adam's; u = max(b2 u + eps, |g|); w -= lr / (1 - b1^t) * m / u."""

    accumulators = ("moment", "inf_norm")
    options = ("beta1", "beta2", "epsilon")
    scalars = (("beta1_pow_acc", "_beta1"),)

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, name)

    def _update(self, batch: Batch) -> None:
        moment, largest = self._lists(batch, "moment", "inf_norm")
        step = self._states[batch.params[0]]["beta1_pow_acc"] + 1
        for parameter in batch.params:
            self._states[parameter]["beta1_pow_acc"] = step
        lists._foreach_lerp_(moment, batch.grads, 1 - self._beta1)
        lists._foreach_mul_(largest, self._beta2)
        lists._foreach_add_(largest, self._epsilon)
        lists._foreach_maximum_(largest, lists._foreach_abs(batch.grads))
        lists._foreach_addcdiv_(batch.weights, moment, largest, -batch.lr / (1 - self._beta1**step))


class Lamb(Optimizer):
    """r = m^ / (sqrt(v^) + eps) + lamb_weight_decay * w; w -= lr * |w| / |r| * r, the ratio 1 where a norm is 0.

    Args:
        exclude_from_weight_decay_fn: called with a parameter: whether it does not decay.

    Source: You et al., 2020.
    """

    decays_itself = True
    options = ("beta1", "beta2", "epsilon")
    accumulators = ("moment1", "moment2")
    scalars = (("beta1_pow_acc", "_beta1"), ("beta2_pow_acc", "_beta2"))

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        lamb_weight_decay: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        parameters: Any = None,
        grad_clip: Any = None,
        exclude_from_weight_decay_fn: Callable[[Tensor], bool] | None = None,
        multi_precision: bool = False,
        always_adapt: bool = False,
        name: str | None = None,
    ) -> None:
        self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon
        self._excludes, self._always_adapt = exclude_from_weight_decay_fn, always_adapt
        super().__init__(learning_rate, parameters, lamb_weight_decay, grad_clip, name, multi_precision)

    def _own_decay(self, parameter: Tensor, group: Mapping[str, Any]) -> float:
        if self._excludes is not None and self._excludes(parameter):
            return 0.0
        return float(group.get("lamb_weight_decay", self.regularization) or 0.0)

    def _update(self, batch: Batch) -> None:
        first, second = self._lists(batch, "moment1", "moment2")
        step = self._states[batch.params[0]]["beta1_pow_acc"] + 1
        for parameter in batch.params:
            self._states[parameter].update(beta1_pow_acc=step, beta2_pow_acc=step)
        lists._foreach_lerp_(first, batch.grads, 1 - self._beta1)
        lists._foreach_mul_(second, self._beta2)
        lists._foreach_addcmul_(second, batch.grads, batch.grads, 1 - self._beta2)
        for weight, m, v in zip(batch.weights, first, second, strict=True):
            below = (v / (1 - self._beta2**step)).sqrt_().add_(self._epsilon)
            update = (m / (1 - self._beta1**step)).div_(below).add_(weight, alpha=batch.decay)
            ratio = 1.0
            if self._always_adapt or batch.decay:
                sizes = torch.linalg.vector_norm(weight), torch.linalg.vector_norm(update)
                ratio = float(sizes[0] / sizes[1]) if float(sizes[0]) > 0 and float(sizes[1]) > 0 else 1.0
            weight.add_(update, alpha=-batch.lr * ratio)
