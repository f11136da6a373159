"""`LazyGuard`: layers whose parameters have no memory until they are initialised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

_depth = 0


class LazyGuard:
    """Within the block, parameters of layers that are made have a shape but no memory.

    `parameter.initialize()` then takes the memory and fills it, as the layer would have done.
    """

    def __enter__(self) -> Self:
        global _depth
        _depth += 1
        return self

    def __exit__(self, *args: Any) -> None:
        global _depth
        _depth -= 1


def is_lazy() -> bool:
    """Whether this is within a LazyGuard."""
    return _depth > 0


def postpone(parameter: Tensor, fill: Callable[[Tensor], Any]) -> None:
    """Take the memory from a parameter; `initialize_now` gives it back and fills it."""
    parameter.untyped_storage().resize_(0)
    vars(parameter)["_fill"] = fill


def initialize_now(parameter: Tensor) -> None:
    """Fill a parameter that was made within a LazyGuard; another one stays as it is."""
    fill = vars(parameter).pop("_fill", None)
    if fill is None:
        return
    parameter.untyped_storage().resize_(parameter.numel() * parameter.element_size())
    with torch.no_grad():
        fill(parameter)
