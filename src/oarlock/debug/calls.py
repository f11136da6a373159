"""What a recorder keeps of a call and of its node in the backward graph, and what it asks of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oarlock.debug.names import Value, call_name, tensors_in

# The node whose backward runs on this thread; a torch without it tells no recomputation from a forward pass.
current_node: Callable[[], Any] = getattr(torch._C, "_current_autograd_node", lambda: None)


class Call(NamedTuple):
    """One call of torch's API, or of a custom Function."""

    api: str
    number: int
    module: str
    phase: str
    step: int
    thread: int
    stack: int
    depth: int
    """How many custom Functions it is in."""
    parent: str
    """The innermost of them."""
    unseen: bool
    """Known from its node only."""
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @property
    def name(self) -> str:
        """Unique in the run."""
        return call_name(self.module, self.api, self.number)


class Mark(NamedTuple):
    """What a recorder keeps in a node's metadata: the call that made it, and those of its results that have it."""

    call: Call
    node: str
    """Its name in torch."""
    values: tuple[Value | None, ...]
    """By number of the node's output, as far as it is known."""


def gradient_name(mark: Mark, number: int) -> str:
    """Of the gradient with respect to an output of a node."""
    value = mark.values[number] if number < len(mark.values) else None
    return f"{mark.call.name}_out{number}@grad" if value is None else f"{value.name}@grad"


def common_path(paths: list[str]) -> str:
    """The innermost module that holds all of them."""
    common = []
    for names in zip(*(path.split(".") for path in paths), strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return ".".join(common)


def arguments_of(args: Any, kwargs: Any) -> list[Tensor]:
    """As `__torch_function__` finds them."""
    found: list[Tensor] = []
    tensors_in(args, found)
    return found + [value for value in kwargs.values() if isinstance(value, Tensor)] if kwargs else found


def as_function(
    tensor: Tensor, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, inputs: Any = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of `torch.autograd.backward` for those of `Tensor.backward`."""
    more = {"retain_graph": retain_graph, "create_graph": create_graph, "inputs": inputs}
    return (tensor, gradient), more
