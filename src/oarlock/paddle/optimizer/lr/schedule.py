"""The base of the schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


class LRScheduler:
    """Base: subclasses define `get_lr()` from `base_lr`, `last_epoch` and `last_lr`.

    Args:
        learning_rate: the base.
        last_epoch: where it stands; -1 before the first.
        verbose: print each change.
    """

    keys: tuple[str, ...] = ("last_epoch", "last_lr")

    def __init__(self, learning_rate: float = 0.1, last_epoch: int = -1, verbose: bool = False) -> None:
        if not isinstance(learning_rate, (int, float)):
            raise TypeError(f"The type of learning rate must be float, but received {type(learning_rate)}")
        if learning_rate < 0:
            raise ValueError(f"Invalid learning rate: {learning_rate}")
        self.base_lr = float(learning_rate)
        self.last_lr = float(learning_rate)
        self.last_epoch = last_epoch
        self.verbose = verbose
        self.step()

    def __call__(self) -> float:
        """The rate now."""
        return self.last_lr

    def step(self, epoch: int | None = None) -> None:
        """To the next rate, or to that of an epoch."""
        if epoch is None:
            self.last_epoch += 1
            self.last_lr = self.get_lr()
        else:
            self.last_epoch = epoch
            closed = getattr(self, "_get_closed_form_lr", None)
            self.last_lr = self.get_lr() if closed is None else closed()
        if self.verbose:
            print(f"Epoch {self.last_epoch}: {type(self).__name__} set learning rate to {self.last_lr}.")

    def get_lr(self) -> float:
        """The rate of `last_epoch`."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""
        return {key: getattr(self, key) for key in self.keys if key in self.__dict__}

    def set_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from there.

        Raises:
            RuntimeError: a value is missing.
        """
        for key in self.keys:
            if key not in self.__dict__:
                continue
            if key not in state_dict:
                raise RuntimeError(
                    f"Please check whether state_dict is correct for optimizer. Can't find [{key}] in state_dict"
                )
            value = state_dict[key]
            setattr(self, key, value.item() if isinstance(value, Tensor) else value)

    set_dict = set_state_dict
    state_keys = state_dict
