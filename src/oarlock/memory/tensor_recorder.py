"""Records torch's own allocations, without a pool: every storage that an operation makes, and when it dies.

    with TensorRecorder() as recorder:
        recorder.watch(model, [optimizer])
        train(model)
    write_page(recorder.recording(), "memory.html")

What a kernel takes and gives back inside one operation is not seen, nor what compiled code takes.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from oarlock.memory.events import BLOCK, EVENT, Action, BlockState, Mark, Recording
from oarlock.memory.export import write
from oarlock.memory.pool import OutOfMemoryError, Pool, is_out_of_memory
from oarlock.memory.sources import enter_source, leave_source
from oarlock.stacks import Frame, StackTable

PARAMETER, BUFFER, GRADIENT, OPTIMIZER = 1, 2, 3, 4
TAGS = {PARAMETER: "parameter", BUFFER: "buffer", GRADIENT: "gradient", OPTIMIZER: "optimizer"}
_WRAPPERS = ("torch/_dynamo/eval_frame.py", "torch/_compile.py", "torch/utils/_python_dispatch.py")
_CHUNK = 1 << 14  # events that are Python tuples before they become an array
_META_BYTES = 1 << 44
# The node whose backward runs on this thread; a torch without it gives no names of nodes.
_current_node = getattr(torch._C, "_current_autograd_node", lambda: None)


class _Live(NamedTuple):
    ref: _Ref
    addr: int
    size: int
    stack: int
    name: int
    tag: int


class _Ref(weakref.ref[torch.UntypedStorage]):
    key: int = 0


class TensorRecorder(TorchDispatchMode):
    """While entered, notes the storages of one type of device that operations of this thread make, and their ends.

    Args:
        device: "cpu", or "meta": those have no memory, their addresses are what a pool would give.
        num_events: how many of the last events are kept (40 bytes each).
        stacks: note where in the program.
        min_stack_bytes: smaller storages get no stack.
        on_oom: file that is written where memory runs out; an OutOfMemoryError that names it then replaces the error.
    """

    def __init__(
        self,
        device: str = "cpu",
        *,
        num_events: int = 1 << 20,
        stacks: bool = False,
        min_stack_bytes: int = 0,
        on_oom: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        self._on_oom = None if on_oom is None else Path(on_oom)
        self.device = device
        self.num_kept = num_events
        self._least = min_stack_bytes if stacks else 1 << 62
        self._stacks = StackTable()
        self._pending: list[tuple[int, ...]] = []
        self._chunks: deque[NDArray[Any]] = deque()
        self._num_flushed = 0
        self._live: dict[int, _Live] = {}
        self._names = {"": 0}
        self._operations: dict[tuple[object, str], int] = {}  # names of (operation, node)
        self._makes: dict[object, bool] = {}
        self._layout = Pool(_META_BYTES, driver="sim", reserve_factor=1) if device == "meta" else None
        self._hooks: list[Any] = []
        self._recording = False

    # --------------------------------------------------------------------------------------------------- noting

    def __enter__(self) -> Self:
        self._recording = True
        enter_source(self)
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        leave_source(self)
        self._recording = False
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if error is not None and is_out_of_memory(error):
            self._note(Action.OOM, 0, 0, 0, 0, 0, 0)
            if self._on_oom is not None:
                written = write(self.recording(), self._on_oom)
                raise OutOfMemoryError(f"{error}\n{written} shows what memory was taken by") from error

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        makes = self._makes.get(function)
        if makes is None:
            makes = self._makes[function] = not _is_view(function)
        if makes:
            for leaf in (result,) if isinstance(result, Tensor) else tree_iter(result):
                if isinstance(leaf, Tensor) and leaf.device.type == self.device and leaf.layout == torch.strided:
                    self._see(leaf.untyped_storage(), function)
        return result

    def _see(self, storage: torch.UntypedStorage, function: object) -> None:
        num_bytes = storage.nbytes()
        known = self._live.get(storage._cdata)
        if known is not None and known.size == num_bytes:
            return
        if known is not None:  # resized
            self._end(storage._cdata)
        if num_bytes == 0:
            return
        node = _current_node()
        key = (function, "" if node is None else node.name())
        name = self._operations.get(key)
        if name is None:
            operation = str(getattr(function, "overloadpacket", function)).removeprefix("aten.")
            name = self._operations[key] = self._name(f"{operation} in {key[1]}" if key[1] else operation)
        stack = self._stacks.capture(3) if num_bytes >= self._least else 0
        self._begin(storage, num_bytes, stack, name, 0, in_backward=node is not None)

    def _begin(
        self, storage: torch.UntypedStorage, num_bytes: int, stack: int, name: int, tag: int, *, in_backward: bool
    ) -> None:
        addr = storage.data_ptr() if self._layout is None else self._layout.malloc(num_bytes)
        ref = _Ref(storage, self._died)
        ref.key = storage._cdata
        self._live[ref.key] = _Live(ref, addr, num_bytes, stack, name, tag)
        self._note(Action.ALLOC, addr, num_bytes, stack, name, tag, in_backward)

    def _died(self, ref: weakref.ref[torch.UntypedStorage]) -> None:
        assert isinstance(ref, _Ref)
        if self._recording:
            self._end(ref.key)

    def _end(self, key: int) -> None:
        ended = self._live.pop(key, None)
        if ended is None:
            return
        _, addr, size, stack, name, tag = ended
        self._note(Action.FREE_COMPLETED, addr, size, stack, name, tag, _current_node() is not None)
        if self._layout is not None:
            self._layout.free(addr)

    def _note(self, action: Action, addr: int, size: int, stack: int, name: int, tag: int, detail: int) -> None:
        self._pending.append((time.monotonic_ns(), addr, size, stack, name, tag, 0, action, detail))
        if len(self._pending) >= _CHUNK:
            self._flush()

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        if pending:
            self._chunks.append(np.array(pending, EVENT))
            self._num_flushed += len(pending)
        while sum(map(len, self._chunks)) - len(self._chunks[0]) >= self.num_kept if self._chunks else False:
            self._chunks.popleft()

    # --------------------------------------------------------------------------------------------------- naming

    def _name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def name(self, tensor: Tensor, name: str, *, tag: int = 0) -> None:
        """Names the storage of a tensor; one that was there before the recorder counts from now on.

        Args:
            tensor: any view of it.
            name: shown in pages.
            tag: one of `TAGS`, 0 for none.
        """
        storage = tensor.untyped_storage()
        if tensor.device.type != self.device or storage.nbytes() == 0:
            return
        number, known = self._name(name), self._live.get(storage._cdata)
        if known is None:
            self._begin(storage, storage.nbytes(), 0, number, tag, in_backward=False)
        elif (known.name, known.tag) != (number, tag):
            self._live[storage._cdata] = known._replace(name=number, tag=tag)
            self._note(Action.ANNOTATION, known.addr, known.size, known.stack, number, tag, Mark.BLOCK)

    def watch(self, model: nn.Module, optimizers: Iterable[torch.optim.Optimizer] = ()) -> None:
        """Names parameters, buffers, gradients as they come, and states of optimizers after their steps."""
        names: dict[Tensor, str] = {}
        for name, parameter in model.named_parameters():
            names[parameter] = name
            self.name(parameter, name, tag=PARAMETER)
            if parameter.grad is not None:
                self.name(parameter.grad, f"{name}.grad", tag=GRADIENT)
            if parameter.requires_grad:
                self._hooks.append(parameter.register_post_accumulate_grad_hook(self._name_gradient(name)))
        for name, buffer in model.named_buffers():
            self.name(buffer, name, tag=BUFFER)

        def name_states(optimizer: torch.optim.Optimizer, *_: object) -> None:
            for parameter, state in optimizer.state.items():
                for key, value in state.items():
                    if isinstance(value, Tensor):
                        self.name(value, f"{names.get(parameter, 'parameter')}.{key}", tag=OPTIMIZER)

        for optimizer in optimizers:
            name_states(optimizer)
            self._hooks.append(optimizer.register_step_post_hook(name_states))

    def _name_gradient(self, name: str) -> Any:
        def hook(parameter: Tensor) -> None:
            if parameter.grad is not None:
                self.name(parameter.grad, f"{name}.grad", tag=GRADIENT)

        return hook

    def annotate(self, name: str, mark: Mark = Mark.MOMENT) -> None:
        """Notes a moment, or the begin or end of a region."""
        self._note(Action.ANNOTATION, 0, 0, 0, self._name(name), 0, mark)

    # -------------------------------------------------------------------------------------------------- reading

    def num_events(self) -> int:
        """Events so far, also those that are no longer kept."""
        return self._num_flushed + len(self._pending)

    def recording(self, since: int = 0) -> Recording:
        """The events from number `since` on, as far as they are kept, and what lives now."""
        self._flush()
        kept = np.concatenate([np.zeros(0, EVENT), *self._chunks])
        first = max(since, self._num_flushed - min(self.num_kept, len(kept)))
        events = kept[len(kept) - (self._num_flushed - first) :]
        blocks = np.array(
            [
                (addr, size, size, stack, name, tag, 0, BlockState.LIVE, 0)
                for _, addr, size, stack, name, tag in list(self._live.values())
            ],
            BLOCK,
        )
        frames, stacks = self._stacks.export()
        stacks = [_without_wrappers(frames, stack) for stack in stacks]
        return Recording(
            events=events,
            blocks=blocks[np.argsort(blocks["addr"], kind="stable")],
            frames=frames,
            stacks=stacks,
            names=list(self._names),
            source=f"torch on {self.device}",
            num_dropped=first,
            tags=TAGS,
        )


def _without_wrappers(frames: list[Frame], stack: tuple[int, ...]) -> tuple[int, ...]:
    """The stack without what torch puts between an operation and the recorder."""
    inner = 0
    while inner < len(stack) and frames[stack[inner]].filename.endswith(_WRAPPERS):
        inner += 1
    return stack[inner:]


def _is_view(function: Any) -> bool:
    """Whether all that the operation returns lies in storages that its arguments had."""
    schema = getattr(function, "_schema", None)
    if schema is None or not schema.returns:
        return schema is not None
    aliases = [argument.alias_info for argument in schema.arguments if argument.alias_info is not None]
    return bool(aliases) and not any(alias.is_write for alias in aliases)
