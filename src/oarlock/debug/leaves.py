"""What accumulates in the leaves of the backward graph: the gradients of parameters, after each backward pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from oarlock.debug.names import Value, call_name

API = "accumulate_grad"


class Accumulation(NamedTuple):
    """A gradient has reached a leaf and was added to what it holds."""

    leaf: Value
    number: int
    step: int
    dtype: torch.dtype
    shape: torch.Size
    content: dict[str, Any]
    """Of the leaf's `grad` after it."""

    def line(self) -> dict[str, Any]:
        """As a record; its inputs are the gradients of that name that nodes have made."""
        path, gradient = self.leaf.name, f"{self.leaf.name}@grad"
        about = {"name": gradient, "dtype": str(self.dtype).removeprefix("torch."), "shape": list(self.shape)}
        line = {"kind": "leaf", "name": call_name(path, API, self.number), "node": "AccumulateGrad", "api": API}
        line |= {"module": path, "phase": "backward", "step": self.step}
        return line | {"inputs": [about], "outputs": [about | self.content]}


class Leaves:
    """Leaves with hooks, until `release`.

    Args:
        accumulated: called with a leaf and its name after a gradient was added.
    """

    def __init__(self, accumulated: Callable[[Value, Tensor], None]) -> None:
        self._accumulated = accumulated
        self._watched: dict[int, tuple[weakref.ref[Tensor], Any]] = {}

    def watch(self, leaf: Tensor, value: Value) -> None:
        """Hear of a leaf from now on; again: nothing. One of a lazy module is heard of once it is filled."""
        if is_lazy(leaf):
            return
        known = self._watched.get(id(leaf))
        if known is None or known[0]() is not leaf:
            handle = leaf.register_post_accumulate_grad_hook(partial(self._accumulated, value))
            self._watched[id(leaf)] = (weakref.ref(leaf), handle)

    def release(self) -> None:
        """Remove all hooks."""
        for ref, handle in self._watched.values():
            if ref() is not None:
                handle.remove()
        self._watched.clear()

    def sweep(self) -> None:
        """Forget leaves that are gone."""
        self._watched = {key: entry for key, entry in self._watched.items() if entry[0]() is not None}
