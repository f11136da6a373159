"""Errors that say where: an exception in a backward pass carries what made the failing node, and where in the program.

    with debug.errors(model):
        for batch in batches:
            loss(model(batch)).backward()

Cheap enough to stay on in training: nothing is kept longer than the graph of an iteration.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from oarlock.debug.calls import Call, Mark, current_node
from oarlock.debug.content import is_wrapped
from oarlock.debug.names import Value, described
from oarlock.debug.recorder import Recorder
from oarlock.stacks import Frame

_NUM_WRITES = 512
_NUM_FRAMES = 4
_VERSION = re.compile(r"modified by an inplace operation")


class _Write(NamedTuple):
    """A write into a tensor, with what the records called the tensor and the one it is a view of before."""

    call: Call
    before: tuple[Value, ...]
    storage: int


def errors(model: nn.Module | None = None) -> Errors:
    """A context in which exceptions of backward passes carry notes.

    The notes name the node, the call that made it, and where in the program that was; for a tensor that was changed in
    place before its backward, also the place of the change. They are printed with the traceback.

    Args:
        model: gives modules and parameters their names.
    """
    return Errors(model)


class Errors(Recorder):
    """The recorder behind `errors`."""

    def __init__(self, model: nn.Module | None = None) -> None:
        super().__init__(model, stacks=True, nodes=True)
        self._writes: deque[_Write] = deque(maxlen=_NUM_WRITES)
        # One table of hooks for all nodes: `register_prehook` makes a table and a handle each, at twice the cost.
        self._running = torch.empty(0, requires_grad=True)
        self._running._backward_hooks = {0: self._begins}

    # ---------------------------------------------------------------------------------------------------- noting

    def _watch(self, node: Any, mark: Mark) -> None:
        node._register_hook_dict(self._running)

    def _begins(self, gradient: Tensor | None) -> None:
        self._local.node = current_node()

    def on_write(self, call: Call, tensor: Tensor, before: Value | None) -> None:
        base = tensor._base
        known = [] if before is None else [before]
        known += [] if base is None else [self.value_of(base)]
        if known and tensor.layout == torch.strided and not is_wrapped(tensor):
            self._writes.append(_Write(call, tuple(known), _storage(tensor)))

    def around_backward(self) -> AbstractContextManager[object]:
        return self._noting()

    @contextmanager
    def _noting(self) -> Iterator[None]:
        local = self._local
        outer = getattr(local, "node", None)
        local.node = None
        local.depth = getattr(local, "depth", 0) + 1
        try:
            yield
        except Exception as error:
            mark = self._failed_node(error) or (None if local.node is None else self.mark_of(local.node))
            if mark is not None:
                local.last = mark
                self._note(error, mark, local.depth - 1)
            raise
        finally:
            local.depth -= 1
            local.node = outer

    def _failed_node(self, error: Exception) -> Mark | None:
        """The node whose Python code raised: it is what torch's frame there is called on."""
        trace, found = error.__traceback__, None
        while trace is not None:
            frame = trace.tb_frame
            node = frame.f_locals.get("self")
            if frame.f_code.co_name == "apply" and hasattr(node, "metadata") and hasattr(node, "next_functions"):
                found = self.mark_of(node) or found
                break  # nested ones have notes by now
            trace = trace.tb_next
        return found

    # ----------------------------------------------------------------------------------------------------- words

    def _note(self, error: Exception, mark: Mark, depth: int) -> None:
        lines = [f"in the backward of {mark.call.name} ({mark.node}), made here:", *self.where(mark.call)]
        lines += ["its inputs:", *(f"  {_words(value)}" for value in mark.call.inputs)] if mark.call.inputs else []
        if _VERSION.search(str(error)) and depth == 0:
            lines += self._write_lines(mark)
        error.add_note("\n".join("  " * depth + line for line in lines))

    def _write_lines(self, mark: Mark) -> list[str]:
        write = self._write_into(mark)
        if write is None:
            return ["what changed its saved tensor in place is not among the last recorded calls"]
        return [f"its saved tensor was changed in place by {write.call.name}, here:", *self.where(write.call)]

    def _write_into(self, mark: Mark) -> _Write | None:
        """The first write into a tensor that the call may have saved; else the last one into memory that it shares."""
        values = {*mark.call.inputs, *mark.call.outputs}
        for write in self._writes:
            if values.intersection(write.before):
                return write
        known = ((ref(), value) for ref, value in list(self._known.values()))
        tensors = [tensor for tensor, value in known if tensor is not None and value in values]
        storages = {_storage(tensor) for tensor in tensors if not is_wrapped(tensor)}
        return next((write for write in reversed(self._writes) if write.storage in storages), None)

    def where(self, call: Call) -> list[str]:
        """Lines of the program's own frames of a call, the innermost first."""
        assert self.stacks is not None
        return frame_lines(self.stacks.frames(call.stack)) or ["  (not seen: it was made outside, or in C++)"]


def own_frames(frames: Sequence[Frame]) -> list[Frame]:
    """Frames of the program: not torch's, not this package's recorder."""
    own = [f for f in frames if "/torch/" not in f.filename and "/oarlock/debug/" not in f.filename]
    return own or list(frames)


def frame_lines(frames: Sequence[Frame]) -> list[str]:
    """`file:line in function` of the innermost own frames."""
    return [f"  {frame.filename}:{frame.line} in {frame.name}" for frame in own_frames(frames)[:_NUM_FRAMES]]


def _storage(tensor: Tensor) -> int:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[operator]
    return local.untyped_storage()._cdata


def _words(value: Value) -> str:
    return value.name if value.api else f"{value.name} ({described(value.dtype, value.shape).replace('_', ' ')})"
