"""`GradScaler`: losses are scaled up, so that small float16 gradients do not become 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


class GradScaler:
    """Scales losses and unscales gradients; the scale follows what happens.

    Args:
        enable: False does nothing.
        init_loss_scaling: the first scale.
        incr_ratio, decr_ratio: factors on it.
        incr_every_n_steps: steps without an infinity before it grows.
        decr_every_n_nan_or_inf: steps with one before it shrinks.
        use_dynamic_loss_scaling: False keeps it.
    """

    def __init__(
        self,
        enable: bool = True,
        init_loss_scaling: float = 65536.0,
        incr_ratio: float = 2.0,
        decr_ratio: float = 0.5,
        incr_every_n_steps: int = 2000,
        decr_every_n_nan_or_inf: int = 1,
        use_dynamic_loss_scaling: bool = True,
    ) -> None:
        self._enable, self._scale = enable, float(init_loss_scaling)
        self._incr_ratio, self._decr_ratio = incr_ratio, decr_ratio
        self._incr_every, self._decr_every = incr_every_n_steps, decr_every_n_nan_or_inf
        self._dynamic = use_dynamic_loss_scaling
        self._good = self._bad = 0
        self._found_inf: dict[int, bool] = {}  # by optimizer, since the last update

    def is_enable(self) -> bool:
        """Whether it does anything."""
        return self._enable

    def is_use_dynamic_loss_scaling(self) -> bool:
        """Whether the scale changes."""
        return self._dynamic

    def get_init_loss_scaling(self) -> float:
        """The scale."""
        return self._scale

    def set_init_loss_scaling(self, new_init_loss_scaling: float) -> None:
        """Another scale."""
        self._scale = float(new_init_loss_scaling)

    def get_incr_ratio(self) -> float:
        """Factor by which the scale grows."""
        return self._incr_ratio

    def set_incr_ratio(self, new_incr_ratio: float) -> None:
        """Factor by which the scale grows."""
        self._incr_ratio = new_incr_ratio

    def get_decr_ratio(self) -> float:
        """Factor by which it shrinks."""
        return self._decr_ratio

    def set_decr_ratio(self, new_decr_ratio: float) -> None:
        """Factor by which it shrinks."""
        self._decr_ratio = new_decr_ratio

    def get_incr_every_n_steps(self) -> int:
        """Steps without an infinity before it grows."""
        return self._incr_every

    def set_incr_every_n_steps(self, new_incr_every_n_steps: int) -> None:
        """Steps without an infinity before it grows."""
        self._incr_every = new_incr_every_n_steps

    def get_decr_every_n_nan_or_inf(self) -> int:
        """Steps with an infinity before it shrinks."""
        return self._decr_every

    def set_decr_every_n_nan_or_inf(self, new_decr_every_n_nan_or_inf: int) -> None:
        """Steps with an infinity before it shrinks."""
        self._decr_every = new_decr_every_n_nan_or_inf

    def scale(self, var: Tensor) -> Tensor:
        """The loss, scaled."""
        return var * self._scale if self._enable else var

    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients of an optimizer by the scale, and look for infinities.

        Raises:
            RuntimeError: twice between two updates.
        """
        if not self._enable:
            return
        if id(optimizer) in self._found_inf:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        found = False
        with torch.no_grad():
            for parameter in optimizer._parameter_list:
                if parameter.grad is not None:
                    parameter.grad.div_(self._scale)
                    found |= not bool(parameter.grad.isfinite().all())
        self._found_inf[id(optimizer)] = found

    def step(self, optimizer: Any) -> None:
        """`optimizer.step()`, unless there is an infinity."""
        if not self._enable:
            optimizer.step()
            return
        if id(optimizer) not in self._found_inf:
            self.unscale_(optimizer)
        if not self._found_inf[id(optimizer)]:
            optimizer.step()

    def update(self) -> None:
        """The scale for the next step."""
        if not self._enable:
            return
        if self._dynamic:
            if any(self._found_inf.values()):
                self._good, self._bad = 0, self._bad + 1
                if self._bad == self._decr_every:
                    self._scale, self._bad = max(self._scale * self._decr_ratio, 1.0), 0
            else:
                self._bad, self._good = 0, self._good + 1
                if self._good == self._incr_every:
                    self._scale, self._good = self._scale * self._incr_ratio, 0
        self._found_inf.clear()

    def minimize(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """`step` and `update`."""
        self.step(optimizer)
        self.update()

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""
        if not self._enable:
            return {}
        return {
            "scale": np.array([self._scale], np.float32),
            "incr_ratio": self._incr_ratio,
            "decr_ratio": self._decr_ratio,
            "incr_every_n_steps": self._incr_every,
            "decr_every_n_nan_or_inf": self._decr_every,
            "incr_count": self._good,
            "decr_count": self._bad,
            "use_dynamic_loss_scaling": self._dynamic,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from there.

        Raises:
            RuntimeError: an empty state.
        """
        if not self._enable:
            return
        if not state_dict:
            raise RuntimeError(
                "The input state dict is empty, possibly because it was saved with a disabled GradScaler."
            )
        self._scale = float(np.asarray(state_dict["scale"]).reshape(-1)[0])
        self._incr_ratio, self._decr_ratio = state_dict["incr_ratio"], state_dict["decr_ratio"]
        self._incr_every, self._decr_every = state_dict["incr_every_n_steps"], state_dict["decr_every_n_nan_or_inf"]
        self._good, self._bad = state_dict["incr_count"], state_dict["decr_count"]
        self._dynamic = state_dict["use_dynamic_loss_scaling"]

    set_state_dict = load_state_dict
