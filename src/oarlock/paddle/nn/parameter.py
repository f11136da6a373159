"""Parameters of layers: a torch.nn.Parameter that has a name and what Paddle keeps with it; `ParamAttr`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.nn.lazy import initialize_now, is_lazy, postpone
from oarlock.paddle.utils.unique_name import generate


class Parameter(torch.nn.Parameter):
    """A trained tensor.

    Attributes:
        name: unique, such as `linear_0.w_0`; names of optimizer states are made from it.
        optimize_attr: {"learning_rate": factor on the optimizer's}.
        regularizer: its own, in place of the optimizer's.
        need_clip: whether gradient clipping counts it.
    """

    optimize_attr: dict[str, float]
    regularizer: Any
    need_clip: bool
    _name: str

    def __new__(
        cls, data: Tensor | None = None, requires_grad: bool = True, *, name: str | None = None, trainable: bool = True
    ) -> Parameter:
        """A parameter over a tensor's memory."""
        made = super().__new__(cls, torch.empty(0) if data is None else data.detach(), requires_grad and trainable)
        made._name = name or generate("create_parameter.w")
        made.optimize_attr = {"learning_rate": 1.0}
        made.regularizer, made.need_clip = None, True
        return made

    def __init__(
        self, data: Tensor | None = None, requires_grad: bool = True, *, name: str | None = None, trainable: bool = True
    ) -> None:
        """See the class."""

    @property
    def name(self) -> str:  # type: ignore[override]
        """Unique in the process."""
        return getattr(self, "_name", "")

    @name.setter
    def name(self, value: str) -> None:
        self._name = value

    @property
    def stop_gradient(self) -> bool:
        """Not trained."""
        return not self.requires_grad

    @stop_gradient.setter
    def stop_gradient(self, stop: bool) -> None:
        self.requires_grad_(not stop)

    @property
    def trainable(self) -> bool:
        """Whether it takes part in training."""
        return self.requires_grad

    @trainable.setter
    def trainable(self, trainable: bool) -> None:
        self.requires_grad_(trainable)

    def initialize(self) -> None:
        """Take memory and fill it, where a LazyGuard postponed that."""
        initialize_now(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        """A copy under a name of its own."""
        if id(self) not in memo:
            made = Parameter(self.data.clone(memory_format=torch.preserve_format), self.requires_grad)
            for key, value in self.__dict__.items():
                setattr(made, key, generate(self.name + "_copy") if key == "_name" else value)
            memo[id(self)] = made
        return memo[id(self)]


class ParamAttr:
    """How a parameter is made and trained.

    Args:
        name: of the parameter; made up by default.
        initializer: called with the tensor to fill; the layer's own by default.
        learning_rate: factor on the optimizer's.
        regularizer: L1Decay or L2Decay, in place of the optimizer's.
        trainable: whether it is trained.
        do_model_average: taken.
        need_clip: whether gradient clipping counts it.
    """

    def __init__(
        self,
        name: str | None = None,
        initializer: Callable[[Tensor], Any] | None = None,
        learning_rate: float = 1.0,
        regularizer: Any = None,
        trainable: bool = True,
        do_model_average: bool = True,
        need_clip: bool = True,
    ) -> None:
        self.name = name
        self.initializer = initializer
        self.learning_rate = learning_rate
        self.regularizer = regularizer
        self.trainable = trainable
        self.do_model_average = do_model_average
        self.need_clip = need_clip

    @classmethod
    def of(cls, attr: Any) -> ParamAttr | None:
        """From what layers take: an attribute, a name, an initialiser, a regulariser, True or None; False is None.

        Raises:
            TypeError: something else.
        """
        if attr is False:
            return None
        if attr is None or attr is True:
            return cls()
        if isinstance(attr, cls):
            return attr
        if isinstance(attr, str):
            return cls(name=attr)
        if hasattr(attr, "penalty"):
            return cls(regularizer=attr)
        if callable(attr):
            return cls(initializer=attr)
        raise TypeError(f"a parameter's attribute is a ParamAttr, a name, an initializer or a bool, not {attr!r}")

    def make(self, tensor: Tensor, default: Callable[[Tensor], Any], prefix: str) -> Parameter:
        """The parameter, filled."""
        parameter = Parameter(tensor, trainable=self.trainable, name=self.name or generate(prefix))
        parameter.optimize_attr = {"learning_rate": self.learning_rate}
        parameter.regularizer = self.regularizer
        parameter.need_clip = self.need_clip
        fill = self.initializer or default
        if is_lazy():
            postpone(parameter, fill)
            return parameter
        with torch.no_grad():
            fill(parameter)
        return parameter


class WeightNormParamAttr(ParamAttr):
    """A ParamAttr with the dimension of a weight normalisation, which `paddle.nn.utils.weight_norm` applies."""

    def __init__(self, dim: int | None = None, **more: Any) -> None:
        super().__init__(**more)
        self.dim = dim
