"""The base of Paddle's optimizers: groups, learning rates, clipping, regularisation, states by name."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oarlock.paddle.optimizer.lr import LRScheduler
from oarlock.paddle.regularizer import L2Decay
from oarlock.paddle.utils.unique_name import generate

lists: Any = torch  # its operations on lists of tensors are not in its stubs


@dataclass
class Batch:
    """Parameters that take the same step, with their gradients.

    Attributes:
        weights: what the step changes: the parameters, or their float32 copies.
        lr: the learning rate, factors of groups and parameters in it.
        decay: what the optimizer itself makes of `weight_decay` (AdamW, Lamb); others have it in the gradients.
    """

    params: list[Tensor]
    weights: list[Tensor]
    grads: list[Tensor]
    lr: float
    decay: float


class Optimizer:
    """Changes parameters along their gradients.

    Args:
        learning_rate: a number or a scheduler of `paddle.optimizer.lr`.
        parameters: of the model; or dicts with `params` and values of their own for `learning_rate` (a factor),
            `weight_decay`, `grad_clip` and the optimizer's `options`, such as `beta1`.
        weight_decay: a number (as L2Decay) or a regulariser, added to the gradients of parameters without their own.
        grad_clip: one of `paddle.nn.ClipGradBy...`, applied before the regularisation.
        multi_precision: keep float32 copies of half-precision parameters, which are what is changed.
    """

    decays_itself = False
    accumulators: tuple[str, ...] = ()
    scalars: tuple[tuple[str, str], ...] = ()  # (name of a state, attribute that it is a power of)
    options: tuple[str, ...] = ()  # what a group may have a value of its own for; the attribute is `_` + the name

    def __init__(
        self,
        learning_rate: float | LRScheduler = 0.001,
        parameters: Any = None,
        weight_decay: Any = None,
        grad_clip: Callable[..., Any] | None = None,
        name: str | None = None,
        multi_precision: bool = False,
    ) -> None:
        if parameters is None:
            raise ValueError("parameters argument given to the Optimizer should not be None: give model.parameters()")
        if isinstance(parameters, Tensor):
            raise TypeError("`parameters` argument given to the optimizer should be an iterable of paddle Tensors")
        given = list(parameters)
        self._learning_rate = learning_rate
        self._grad_clip = grad_clip
        self._multi_precision = multi_precision
        self._name = name
        self.regularization = weight_decay
        self._param_groups: list[dict[str, Any]] = []
        groups = given if given and isinstance(given[0], dict) else [{"params": given}]
        for group in groups:
            self._add_param_group(dict(group))
        self._group_of = {id(p): group for group in self._param_groups for p in group["params"]}
        self._states: dict[Tensor, dict[str, Any]] = {}
        self._masters: dict[Tensor, Tensor] = {}
        self._pending: dict[str, Any] = {}  # states that were loaded before their parameters took a step

    def _add_param_group(self, group: dict[str, Any]) -> None:
        params = group["params"]
        group["params"] = [params] if isinstance(params, Tensor) else list(params)
        known = {id(p) for other in self._param_groups for p in other["params"]}
        if any(id(p) in known for p in group["params"]):
            raise ValueError("some parameters appear in more than one parameter group")
        for parameter in group["params"]:
            if not getattr(parameter, "name", None):  # a plain torch parameter
                _plain_names.setdefault(id(parameter), generate("param"))
        self._param_groups.append(group)

    @property
    def _parameter_list(self) -> list[Tensor]:
        return [p for group in self._param_groups for p in group["params"]]

    # --------------------------------------------------------------------------------------------- learning rates

    def get_lr(self) -> float:
        """The learning rate now."""
        rate = self._learning_rate
        return float(rate()) if isinstance(rate, LRScheduler) else float(rate)

    def set_lr(self, value: float) -> None:
        """Another learning rate.

        Raises:
            RuntimeError: a scheduler decides.
        """
        if isinstance(self._learning_rate, LRScheduler):
            raise RuntimeError("optimizer's learning rate can't be LRScheduler when invoke this API")
        self._learning_rate = float(value)

    def set_lr_scheduler(self, scheduler: LRScheduler) -> None:
        """Another scheduler."""
        if not isinstance(scheduler, LRScheduler):
            raise TypeError(f"a scheduler is a paddle.optimizer.lr.LRScheduler, got {type(scheduler).__name__}")
        self._learning_rate = scheduler

    # ------------------------------------------------------------------------------------------------------ steps

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change all parameters that have gradients."""
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        for group in self._param_groups:
            pairs = [(p, p.grad) for p in group["params"] if p.grad is not None and p.requires_grad]
            if not pairs:
                continue
            clip = group.get("grad_clip", self._grad_clip)
            if clip is not None:
                pairs = clip([(p, grad.to_dense() if grad.is_sparse else grad) for p, grad in pairs])
            with self._options_of(group):
                for batch in self._batches(pairs, group):
                    self._update(batch)
                    for parameter, weight in zip(batch.params, batch.weights, strict=True):
                        if weight is not parameter:
                            parameter.copy_(weight)
        return result

    @contextlib.contextmanager
    def _options_of(self, group: Mapping[str, Any]) -> Iterator[None]:
        own = [f"_{name}" for name in self.options if name in group]
        before = {name: getattr(self, name) for name in own}
        try:
            for name in own:
                setattr(self, name, group[name[1:]])
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def _option(self, parameter: Tensor, attribute: str) -> Any:
        return self._group_of[id(parameter)].get(attribute[1:], getattr(self, attribute))

    def _batches(self, pairs: Sequence[tuple[Tensor, Tensor]], group: Mapping[str, Any]) -> list[Batch]:
        """Parameters by what they have in common, so that each kind is one call of few kernels."""
        rate = self.get_lr() * group.get("learning_rate", 1.0)
        regularizer = _regularizer(group.get("weight_decay", self.regularization))
        found: OrderedDict[tuple[Any, ...], Batch] = OrderedDict()
        for parameter, gradient in pairs:
            weight = self._weight(parameter)
            if gradient.is_sparse:  # of sparse embeddings
                gradient = gradient.coalesce() if self._takes_rows(parameter) else gradient.to_dense()
            if gradient.dtype != weight.dtype:
                gradient = gradient.to(weight.dtype)
            factor = getattr(parameter, "optimize_attr", _PLAIN)["learning_rate"] * self._lr_factor(parameter)
            decay = 0.0
            if self.decays_itself:
                decay = self._own_decay(parameter, group)
            elif (own := getattr(parameter, "regularizer", None) or regularizer) is not None:
                gradient = gradient + own.penalty(weight)
            self._state(parameter, weight)
            rows = id(parameter) if gradient.is_sparse else None
            key = (rate * factor, decay, weight.dtype, weight.device, rows, self._key(parameter))
            batch = found.setdefault(key, Batch([], [], [], rate * factor, decay))
            batch.params.append(parameter)
            batch.weights.append(weight)
            batch.grads.append(gradient)
        return list(found.values())

    def _weight(self, parameter: Tensor) -> Tensor:
        if not self._multi_precision or parameter.dtype not in (torch.float16, torch.bfloat16):
            return parameter
        if parameter not in self._masters:
            self._masters[parameter] = parameter.detach().float()
        return self._masters[parameter]

    def _state(self, parameter: Tensor, weight: Tensor) -> dict[str, Any]:
        state = self._states.get(parameter)
        if state is None:
            state = self._states[parameter] = {name: self._first(name, weight) for name in self.accumulators}
            state |= dict.fromkeys((name for name, _ in self.scalars), 0)  # powers: how many steps
            if self._pending:
                self._take_pending(parameter, state)
        return state

    def _first(self, name: str, weight: Tensor) -> Tensor:
        return torch.zeros_like(weight)

    def _takes_rows(self, parameter: Tensor) -> bool:
        """Whether `_update` can do with the rows of a sparse gradient; it is made dense otherwise."""
        return False

    def _lr_factor(self, parameter: Tensor) -> float:
        return 1.0

    def _own_decay(self, parameter: Tensor, group: Mapping[str, Any]) -> float:
        return 0.0

    def _key(self, parameter: Tensor) -> Any:
        """What else tells parameters apart: how many steps they have taken."""
        return tuple(self._states[parameter][name] for name, _ in self.scalars) if parameter in self._states else None

    def _lists(self, batch: Batch, *names: str) -> list[list[Tensor]]:
        return [[self._states[p][name] for p in batch.params] for name in names]

    def _update(self, batch: Batch) -> None:
        raise NotImplementedError

    def minimize(
        self, loss: Tensor, startup_program: Any = None, parameters: Any = None, no_grad_set: Any = None
    ) -> tuple[None, list[tuple[Tensor, Tensor]]]:
        """`step()` on gradients that are there."""
        pairs = self._pairs()
        self.step()
        return None, pairs

    def backward(
        self,
        loss: Tensor,
        startup_program: Any = None,
        parameters: Any = None,
        no_grad_set: Any = None,
        callbacks: Any = None,
    ) -> list[tuple[Tensor, Tensor]]:
        """What `apply_gradients` takes: (parameter, gradient) of those that `loss.backward()` has given gradients."""
        return self._pairs()

    def apply_gradients(self, params_grads: Sequence[tuple[Tensor, Tensor]]) -> list[Any]:
        """`step()` with these gradients in place of those of the parameters."""
        before = [(parameter, parameter.grad) for parameter in self._parameter_list]
        given = {id(parameter): gradient for parameter, gradient in params_grads}
        try:
            for parameter, _ in before:
                parameter.grad = given.get(id(parameter))
            self.step()
        finally:
            for parameter, gradient in before:
                parameter.grad = gradient
        return []

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        return [(p, p.grad) for p in self._parameter_list if p.grad is not None]

    def clear_grad(self, set_to_zero: bool = True) -> None:
        """Zero the gradients (Paddle's default), or forget them."""
        grads = [p.grad for p in self._parameter_list if p.grad is not None]
        if set_to_zero and grads:
            for parameter in self._parameter_list:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    parameter.grad = None  # no rows: that is zero
            if dense := [g for g in grads if not g.is_sparse]:
                lists._foreach_zero_(dense)
        elif not set_to_zero:
            for parameter in self._parameter_list:
                parameter.grad = None

    clear_gradients = zero_grad = clear_grad

    # ------------------------------------------------------------------------------------------------------ states

    def state_dict(self) -> dict[str, Any]:
        """States by name (`linear_0.w_0_moment1_0`), float32 copies in `master_weights`, and the scheduler's state."""
        found: dict[str, Any] = {}
        named = [(_name(parameter), parameter, state) for parameter, state in self._states.items()]
        for key in self.accumulators:
            found |= {f"{name}_{key}_0": state[key] for name, _, state in named}
        for key, base in self.scalars:
            for name, parameter, state in named:
                power = self._option(parameter, base) ** (state[key] + 1)
                found[f"{name}_{key}_0"] = torch.tensor([power], dtype=torch.float32)
        masters = {name: self._masters[parameter] for name, parameter, _ in named if parameter in self._masters}
        if masters:
            found["master_weights"] = masters
        if isinstance(self._learning_rate, LRScheduler):
            found["LR_Scheduler"] = self._learning_rate.state_dict()
        return found

    def set_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave, here or in Paddle."""
        if "LR_Scheduler" in state_dict and isinstance(self._learning_rate, LRScheduler):
            self._learning_rate.set_state_dict(state_dict["LR_Scheduler"])
        self._pending = {key: value for key, value in state_dict.items() if key != "LR_Scheduler"}
        masters = self._pending.pop("master_weights", {})
        for parameter in self._parameter_list:
            if _name(parameter) in masters:
                self._masters[parameter] = _tensor(masters[_name(parameter)]).clone()
            if parameter in self._states or self._has_pending(parameter):
                self._take_pending(parameter, self._state(parameter, self._weight(parameter)))

    set_dict = load_state_dict = set_state_dict

    def _has_pending(self, parameter: Tensor) -> bool:
        names = (*self.accumulators, *(name for name, _ in self.scalars))
        return any(f"{_name(parameter)}_{key}_0" in self._pending for key in names)

    def _take_pending(self, parameter: Tensor, state: dict[str, Any]) -> None:
        name = _name(parameter)
        for key in self.accumulators:
            value = self._pending.pop(f"{name}_{key}_0", None)
            if value is not None:
                state[key] = _tensor(value).to(state[key].dtype).reshape(state[key].shape).clone()
        for key, base in self.scalars:
            value = self._pending.pop(f"{name}_{key}_0", None)
            if value is not None:  # a power of a number below 1: its exponent is the number of steps and one
                power = float(_tensor(value).reshape(-1)[0])
                factor = self._option(parameter, base)
                state[key] = max(round(np.log(power) / np.log(factor)) - 1, 0) if power > 0 else 1 << 30


_PLAIN = {"learning_rate": 1.0}
_plain_names: dict[int, str] = {}


def _name(parameter: Tensor) -> str:
    return getattr(parameter, "name", None) or _plain_names[id(parameter)]


def _tensor(value: Any) -> Tensor:
    return value.detach() if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))


def _regularizer(weight_decay: Any) -> Any:
    if weight_decay is None or hasattr(weight_decay, "penalty"):
        return weight_decay
    return L2Decay(float(weight_decay)) if float(weight_decay) else None
