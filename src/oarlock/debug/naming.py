"""Names of modules, tensors and nodes of the backward graph: the part of a recorder that remembers.

What a tensor is called is kept beside a weak reference to it; what made a node is kept in the node's own `metadata`.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from oarlock.debug.calls import Call, Mark
from oarlock.debug.names import Value, new_value, shape_of

SWEEP = 4096


class Naming(TorchFunctionMode):
    """Knows what records call a tensor, a module, and the call behind a node."""

    def __init__(self) -> None:
        super().__init__()
        self._key = f"oarlock.debug.{id(self)}"
        self._counts: dict[str, int] = {}
        self._known: dict[int, tuple[weakref.ref[Tensor], Value]] = {}
        self._sweep_at = SWEEP
        self._paths: dict[int, str] = {}

    def _name_model(self, model: nn.Module) -> None:
        self._paths = {id(module): path for path, module in model.named_modules()}
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            self.name(tensor, name)

    def name(self, tensor: Tensor, name: str) -> None:
        """Call a tensor `name` in all records from now on, as parameters are."""
        self._keep(tensor, new_value((name, "", 0, -1, shape_of(tensor), tensor.dtype, tensor.requires_grad)))

    def _path(self, modules: list[nn.Module]) -> str:
        if not modules:
            return ""
        path = self._paths.get(id(modules[-1]))
        if path is not None:
            return path
        names: list[str] = []
        for module in reversed(modules):
            path = self._paths.get(id(module))
            if path is not None:
                return ".".join(filter(None, [path, *reversed(names)]))
            names.append(type(module).__name__)
        return ".".join(reversed(names))

    def value_of(self, tensor: Tensor) -> Value:
        """What the records call a tensor; one that nothing recorded has made is an `input`."""
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        node = tensor.grad_fn
        if node is not None:
            return self._value_from(node, tensor)
        number = self._counts["input"] = self._counts.get("input", 0) + 1
        value = new_value(("", "input", number, -1, shape_of(tensor), tensor.dtype, tensor.requires_grad))
        self._keep(tensor, value)
        return value

    def _value_from(self, node: Any, tensor: Tensor) -> Value:
        """Of a tensor that only its node of the backward graph tells of."""
        raise NotImplementedError

    def value_at(self, edge: tuple[Any, int]) -> Value | None:
        """The tensor whose gradient leaves along an edge of the backward graph."""
        node, number = edge
        for _ in range(8):  # nodes that torch made beside the call's own, such as the transposition in a linear layer
            if node is None:
                return None
            mark = self.mark_of(node)
            if mark is not None:
                return mark.values[number] if number < len(mark.values) else None
            variable = getattr(node, "variable", None)
            if variable is not None:
                return self.value_of(variable)
            if not node.next_functions:
                return None
            node, number = node.next_functions[0]
        return None

    def _keep(self, tensor: Tensor, value: Value) -> None:
        self._known[id(tensor)] = (weakref.ref(tensor), value)
        if len(self._known) > self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        """Forget tensors that are gone."""
        for key, (ref, _) in list(self._known.items()):
            if ref() is None:
                del self._known[key]
        self._sweep_at = 2 * len(self._known) + SWEEP

    def mark_of(self, node: Any) -> Mark | None:
        """What made a node of the backward graph; None if that was not recorded."""
        metadata = node.metadata
        mark = metadata.get(self._key)
        if mark is None or type(mark) is Mark:
            return mark
        # The fields of a call with one result.
        mark = metadata[self._key] = Mark(tuple.__new__(Call, mark), type(node).__name__, mark[-1])
        return mark
