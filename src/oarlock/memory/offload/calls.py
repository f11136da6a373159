"""Which call of which module runs now: the names by which a plan knows the storages that are saved."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

OUTSIDE = "outside"
"""Path of what happens beside the modules."""
CallKey = tuple[int, str, int]
"""(forward pass of the graph, path of the module, how often it was called before)."""
SaveKey = tuple[int, str, int, int]
"""A call and the number of the save in it."""


@dataclasses.dataclass(eq=False)
class Call:
    """One call of a module; `num_saves` tensors were saved directly in it."""

    key: CallKey
    module: nn.Module
    parent: Call | None
    num_saves: int = 0

    def next_save(self) -> SaveKey:
        self.num_saves += 1
        return (*self.key, self.num_saves - 1)


class Calls:
    """Follows the calls of a model's modules while attached.

    Args:
        model: its calls with gradients are passes.
        begin_pass: called before each pass; returns whether the graphs of earlier passes are still there.
        begin, end: called with each call of a module, `begin` also with its arguments.
    """

    def __init__(
        self,
        model: nn.Module,
        begin_pass: Callable[[], bool],
        begin: Callable[[Call, Any], None] | None = None,
        end: Callable[[Call], None] | None = None,
    ) -> None:
        self._model, self._begin_pass, self._begin, self._end = model, begin_pass, begin, end
        self._paths = {module: name for name, module in model.named_modules()}
        self._counts: Counter[str] = Counter()
        self._pass = 0
        self._muted = 0
        self._handles: list[Any] = []
        self.outside = self.current = Call((0, OUTSIDE, 0), model, None)

    def attach(self) -> None:
        """Begins to follow."""
        for module in self._paths:
            self._handles.append(module.register_forward_pre_hook(self._enter, with_kwargs=True, prepend=True))
            self._handles.append(module.register_forward_hook(self._leave, always_call=True))

    def detach(self) -> None:
        """Ends it."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @contextmanager
    def muted(self) -> Iterator[None]:
        """What is called meanwhile happens for a second time."""
        self._muted += 1
        try:
            yield
        finally:
            self._muted -= 1

    @property
    def is_muted(self) -> bool:
        return self._muted > 0

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._muted or not torch.is_grad_enabled():
            return
        if module is self._model:  # also after a pass that an exception ended
            self._pass = self._pass + 1 if self._begin_pass() else 0
            self._counts.clear()
            self.outside = self.current = Call((self._pass, OUTSIDE, 0), self._model, None)
        path = self._paths[module]
        self.current = Call((self._pass, path, self._counts[path]), module, self.current)
        self._counts[path] += 1
        if self._begin is not None:
            self._begin(self.current, (args, kwargs))

    def _leave(self, module: nn.Module, *_: object) -> None:
        if self._muted or not torch.is_grad_enabled() or self.current.module is not module:
            return
        if self.current.parent is None:
            return
        if self._end is not None:
            self._end(self.current)
        self.current = self.current.parent
