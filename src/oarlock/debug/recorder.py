"""The one recorder under every view: sees each call of torch's API, names it, its tensors and its nodes.

A mode of torch sits above autograd: API, arguments and the new node of the backward graph are seen in one place. The
name of a call is kept in its node's `metadata`, which lives exactly as long as the node.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

from oarlock.debug import patches
from oarlock.debug.calls import Call, Mark, arguments_of, as_function, common_path, current_node, gradient_name
from oarlock.debug.names import Api, Value, api_of, new_value, shape_of, tensors_in
from oarlock.debug.naming import Naming
from oarlock.debug.patches import entered_modes, module_stack, undispatched
from oarlock.stacks import StackTable

_TENSORS = {Tensor, nn.Parameter}
_SCALARS = {int, float, bool, str, type(None), torch.dtype, torch.device}
_new, _ref = tuple.__new__, weakref.ref


class _Thread:
    """Where a thread is."""

    __slots__ = ("engines", "functions", "ident", "modules")

    def __init__(self) -> None:
        self.modules = module_stack()
        self.functions: list[Call] = []
        self.engines: list[bool] = []  # whether the running backward builds a graph
        self.ident = threading.get_ident()


class Recorder(Naming):
    """Names what happens while it is entered; views are made of it by overriding `on_...`.

    Args:
        model: whose modules and parameters have their names; other modules are named by their classes.
        stacks: keep where in the program each call was made.
        nodes: also call `on_node` for each node of the backward graph that runs.
    """

    def __init__(self, model: nn.Module | None = None, *, stacks: bool = False, nodes: bool = False) -> None:
        super().__init__()
        self.model = model
        self.stacks = StackTable() if stacks else None
        self.nodes = nodes
        self.step_number = 0
        self._apis: dict[Any, Api] = {}
        self._plain: dict[Any, str] = {}  # names of those that `__torch_function__` records itself
        self._local = threading.local()
        self._engine_backward = undispatched(torch.autograd.backward, self._entered)
        self._engine_grad = undispatched(torch.autograd.grad, self._entered)
        self._holds_backward = type(self).around_backward is not Recorder.around_backward
        self._num_entered = 0
        self._running: Tensor | None = None  # whose hooks nodes also call as they begin, in place of `_watch`
        self._reads = False  # whether a view wants the tensors of calls, if not before plain ones
        # Whether a view wants to know before a call, and its tensors.
        self._watches_calls = type(self).on_begin is not Recorder.on_begin
        self._take: Callable[[Any], None] | None = None if type(self).on_call is Recorder.on_call else self._taken

    # ---------------------------------------------------------------------------------------------------- views

    def on_begin(self, call: Call, arguments: list[Tensor]) -> Any:
        """Before a call, whose outputs are not known yet. What it returns is given to `on_call`."""

    def on_call(self, call: Call, results: Sequence[Tensor], begun: Any) -> None:
        """After a call; `results` are left out unless `on_begin` is overridden."""

    def on_write(self, call: Call, tensor: Tensor, before: Value | None) -> None:
        """A call writes into a tensor, which records have called `before`."""

    def on_node_begin(self, mark: Mark, node: Any, gradients: tuple[Tensor | None, ...]) -> None:
        """Before a node of the backward graph runs, with the gradients of its call's outputs."""

    def on_node(self, mark: Mark, node: Any, to: Any, came: Any) -> None:
        """After it has run: gradients of its inputs and of its outputs."""

    def around_backward(self) -> AbstractContextManager[object]:
        """Held while the engine runs."""
        return nullcontext()

    def _taken(self, fields: tuple[Any, ...]) -> None:
        self.on_call(_new(Call, fields), (), None)

    # -------------------------------------------------------------------------------------------------- entering

    def __enter__(self) -> Self:
        if self._num_entered == 0:
            patches.install(_function_call)
            if self.model is not None and not self._paths:
                self._name_model(self.model)
        self._num_entered += 1
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._num_entered -= 1
        if self._num_entered == 0:
            patches.uninstall()

    @contextmanager
    def on_this_thread(self) -> Iterator[None]:
        """Also record what another thread does in the block; a recorder sees the thread that entered it only."""
        with self:
            yield

    def step(self) -> None:
        """Begin the next iteration: records carry its number from now on."""
        self.step_number += 1

    # --------------------------------------------------------------------------------------------------- the mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = self._plain.get(func)
        if name is None or (kwargs and kwargs.get("out") is not None):
            return self._any_call(func, args, kwargs or {})
        # What follows is the same as `_any_call` for the common case, without a function call of its own: it is most of
        # what a recorder costs.
        known, inputs = self._known, []
        for argument in args:
            kind = type(argument)
            if kind in _TENSORS or (kind not in _SCALARS and isinstance(argument, Tensor)):
                entry = known.get(id(argument))
                inputs.append(
                    entry[1] if entry is not None and entry[0]() is argument else self.value_of(argument),
                )
            elif kind is list or kind is tuple:
                found: list[Tensor] = []
                tensors_in(argument, found)
                inputs += map(self.value_of, found)
        if kwargs:
            inputs += [self.value_of(value) for value in kwargs.values() if isinstance(value, Tensor)]
            result = func(*args, **kwargs)
        else:
            result = func(*args)
        if type(result) is not Tensor:
            if isinstance(result, FakeTensor):
                return result  # torch asks itself for a shape
            if not isinstance(result, Tensor):
                return self._record_results(name, inputs, result, args, kwargs)
        entry = known.get(id(result))
        if entry is not None and entry[0]() is result:
            return result  # as it came
        try:
            thread = self._local.thread
        except AttributeError:
            thread = self._local.thread = _Thread()
        depth, parent = 0, ""
        if thread.functions or thread.engines or not thread.modules:
            where = self._where(thread)
            if where is None:
                return result
            module, phase = where
            if thread.functions:
                depth, parent = len(thread.functions), thread.functions[-1].name
        else:
            module, phase = self._paths.get(id(thread.modules[-1])), "forward"
            if module is None:
                module = self._path(thread.modules)
        counts = self._counts
        number = counts[name] = counts.get(name, 0) + 1
        node: Any = result.grad_fn
        try:
            value = _new(Value, (module, name, number, -1, result.shape, result.dtype, node is not None))
        except RuntimeError:
            value = _new(Value, (module, name, number, -1, shape_of(result), result.dtype, node is not None))
        known[id(result)] = (_ref(result), value)
        stack = 0 if self.stacks is None else self.stacks.capture(2)
        step, ident, made_from, outputs = self.step_number, thread.ident, tuple(inputs), (value,)
        fields = (name, number, module, phase, step, ident, stack, depth, parent, False, made_from, outputs)
        if node is not None:
            metadata, key = node.metadata, self._key
            if key in metadata or result.output_nr:
                self._mark(_new(Call, fields), node, result.output_nr, value)
            elif self._running is not None:
                metadata[key] = fields
                node._register_hook_dict(self._running)
            elif self.nodes:
                mark = metadata[key] = _new(Mark, (_new(Call, fields), type(node).__name__, outputs))
                self._watch(node, mark)
            else:
                metadata[key] = fields
        if self._reads:
            self._read_plain(fields, result, args, kwargs)
        elif self._take is not None:
            self._take(fields)
        if len(known) > self._sweep_at:
            self._sweep()
        return result

    def _any_call(self, func: Any, args: Any, kwargs: Any) -> Any:
        api = self._apis.get(func)
        if api is None:
            api = self._apis[func] = api_of(func)
            if api.is_plain and not self._watches_calls:
                self._plain[func] = api.name
        if not api.name:
            return func(*args, **kwargs)
        if api.name == "grad" and not api.is_plain:
            if api.is_engine:
                return self._run_engine(func, args, kwargs)
            return self._gradient_of(args[0], func(*args, **kwargs))
        if api.is_engine:
            return self._run_engine(func, args, kwargs)
        arguments: list[Tensor] = []
        tensors_in(args, arguments)
        if kwargs:
            tensors_in(kwargs, arguments)
        begun = self._begin(api.name, arguments, 3)
        if begun is None:
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        results: list[Tensor] = []
        tensors_in(result, results)
        if api.writes and args and not results:
            tensors_in(args[0], results)
        for place in api.written:
            written = kwargs.get(place) if isinstance(place, str) else args[place] if place < len(args) else None
            tensors_in(written, results)
        self._end(*begun, results, arguments, bool(api.writes or api.written or "out" in kwargs))
        return result

    def _record_results(self, api: str, inputs: list[Value], result: Any, args: Any, kwargs: Any) -> Any:
        results: list[Tensor] = []
        tensors_in(result, results)
        begun = self._begin(api, [], 3) if results else None
        if begun is not None:
            call = begun[0]._replace(inputs=tuple(inputs))
            seen = self.on_begin(call, arguments_of(args, kwargs)) if self._reads else None
            self._end(call, seen, results, [], False)
        return result

    def _read_plain(self, fields: tuple[Any, ...], result: Tensor, args: Any, kwargs: Any) -> None:
        """Tensors of a call that has written none, so they are as they were before it."""
        call = _new(Call, fields)
        self.on_call(call, (result,), self.on_begin(call, arguments_of(args, kwargs)))

    def _gradient_of(self, tensor: Tensor, gradient: Tensor | None) -> Tensor | None:
        if gradient is not None:
            known = self._known.get(id(gradient))
            if known is None or known[0]() is not gradient:
                self.name(gradient, f"{self.value_of(tensor).name}@grad")
        return gradient

    def _where(self, thread: _Thread) -> tuple[str, str] | None:
        """Module and phase of what happens now; None for the engine's own preparations."""
        node, modules = current_node(), thread.modules
        if node is None:
            return None if thread.engines else (self._path(modules), "forward")
        builds = bool(thread.engines and thread.engines[-1])
        phase = "recompute" if torch.is_grad_enabled() and not builds else "backward"
        if modules:
            return self._path(modules), phase
        mark = self.mark_of(node)
        return ("" if mark is None else mark.call.module), phase

    def _thread(self) -> _Thread:
        try:
            return self._local.thread
        except AttributeError:
            self._local.thread = _Thread()
            return self._local.thread

    def _begin(self, api: str, arguments: list[Tensor], skip: int) -> tuple[Call, Any] | None:
        """The record of a call that is about to happen, and what `on_begin` returned.

        None for what is not the program's own doing.
        """
        thread = self._thread()
        where = self._where(thread)
        if where is None or any(isinstance(argument, FakeTensor) for argument in arguments):
            return None
        number = self._counts[api] = self._counts.get(api, 0) + 1
        functions = thread.functions
        parent = functions[-1].name if functions else ""
        stack = self.stacks.capture(skip + 1) if self.stacks is not None else 0
        inputs = tuple([self.value_of(argument) for argument in arguments])
        about = (api, number, where[0], where[1], self.step_number, thread.ident, stack, len(functions), parent)
        call = Call(*about, False, inputs, ())
        return call, self.on_begin(call, arguments)

    def _end(self, call: Call, begun: Any, results: list[Tensor], arguments: list[Tensor], writes: bool) -> None:
        if not results:
            return
        single = len(results) == 1
        values = []
        for i, result in enumerate(results):
            known = self._known.get(id(result))
            before = known[1] if known is not None and known[0]() is result else None
            if writes:
                self.on_write(call, result, before)
            came = any(result is argument for argument in arguments)
            if before is not None and (not before.api if writes else came):
                values.append(before)  # returned as it came; or written, but a parameter keeps its name
                continue
            fields = (call.module, call.api, call.number, -1 if single else i, shape_of(result), result.dtype)
            value = new_value((*fields, result.requires_grad))
            self._keep(result, value)
            values.append(value)
        call = call._replace(outputs=tuple(values))
        if not writes and all(any(result is argument for argument in arguments) for result in results):
            return  # nothing was computed
        for result, value in zip(results, values, strict=True):
            node = result.grad_fn
            if node is not None:
                self._mark(call, node, result.output_nr, value)
                if writes and result._base is not None and result._base.grad_fn is not None:
                    self._mark(call, result._base.grad_fn, result._base.output_nr, value)
        self.on_call(call, results, begun)

    def _mark(self, call: Call, node: Any, number: int, value: Value) -> None:
        metadata = node.metadata
        mark = self.mark_of(node)
        if mark is None:
            values = (value,) if number == 0 else (None,) * number + (value,)
            mark = metadata[self._key] = tuple.__new__(Mark, (call, type(node).__name__, values))
            if self.nodes:
                self._watch(node, mark)
        elif mark.call.number == call.number and mark.call.api == call.api and number >= len(mark.values):
            values = mark.values + (None,) * (number - len(mark.values)) + (value,)
            metadata[self._key] = mark._replace(values=values)

    def _watch(self, node: Any, mark: Mark) -> None:
        """Have `on_node` called when the node runs."""
        node.register_prehook(self._node_begins)
        node.register_hook(self._node_ends)

    # --------------------------------------------------------------------------------------------------- tensors

    def _value_from(self, node: Any, tensor: Tensor) -> Value:
        """Of a tensor that only its node of the backward graph tells of.

        The call was not seen: it went through a Function's `apply` taken before, or through C++, or was made outside.
        """
        number, mark = tensor.output_nr, self.mark_of(node)
        known = mark.values[number] if mark is not None and number < len(mark.values) else None
        if known is not None:
            self._keep(tensor, known)
            return known
        call = self._unseen(node) if mark is None else mark.call
        index = -1 if number == 0 and mark is None else number
        fields = (call.module, call.api, call.number, index, shape_of(tensor), tensor.dtype, True)
        value = new_value(fields)
        self._keep(tensor, value)
        call = call._replace(outputs=(*call.outputs, value))
        self._mark(call, node, number, value)
        if mark is None:
            self.on_call(call, [tensor], None)
        return value

    def _unseen(self, node: Any) -> Call:
        api = node.name().removesuffix("0").removesuffix("Backward")
        thread = self._thread()
        marks = (self.mark_of(other) for other, _ in node.next_functions if other is not None)
        paths = [self._path(thread.modules), *(mark.call.module for mark in marks if mark is not None)]
        module = common_path(paths)
        number = self._counts[api] = self._counts.get(api, 0) + 1
        inputs = tuple(filter(None, (self.value_at(edge) for edge in node.next_functions)))
        return Call(api, number, module, "forward", self.step_number, thread.ident, 0, 0, "", True, inputs, ())

    # -------------------------------------------------------------------------------------------------- backward

    def _run_engine(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Python's part of the engine runs unseen, as this mode is off; the engine itself with the modes entered."""
        modes = [*entered_modes(Recorder), self]
        kwargs = dict(kwargs)
        if func is torch.autograd.grad:
            run = self._engine_grad
        else:
            run = self._engine_backward
            if func is torch.Tensor.backward:
                args, kwargs = as_function(*args, **kwargs)
        creates = bool(kwargs.get("create_graph", False))
        engines = [mode._thread().engines for mode in modes]
        for running in engines:
            running.append(creates)
        try:
            holding = [mode for mode in modes if mode._holds_backward]
            if not holding:
                return run(*args, **kwargs)
            with ExitStack() as contexts:
                for mode in holding:
                    contexts.enter_context(mode.around_backward())
                return run(*args, **kwargs)
        finally:
            for running in engines:
                running.pop()

    def _entered(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        TorchFunctionMode.__enter__(self)
        try:
            return run(*args, **kwargs)
        finally:
            TorchFunctionMode.__exit__(self, None, None, None)

    def _node_begins(self, gradients: tuple[Tensor | None, ...]) -> None:
        node = current_node()
        mark = self.mark_of(node)
        if mark is not None:
            with torch._C.DisableTorchFunction():  # what views compute is not the program's doing
                if isinstance(node, BackwardCFunction):
                    self._name_gradients(mark, gradients)
                self.on_node_begin(mark, node, gradients)

    def _node_ends(self, to: tuple[Tensor | None, ...], came: tuple[Tensor | None, ...]) -> None:
        node = current_node()
        mark = self.mark_of(node)
        if mark is not None:
            with torch._C.DisableTorchFunction():
                self.on_node(mark, node, to, came)

    def _name_gradients(self, mark: Mark, gradients: tuple[Tensor | None, ...]) -> None:
        """So that what the backward of a custom Function computes starts from known names."""
        for i, gradient in enumerate(gradients):
            if gradient is not None:
                self.name(gradient, gradient_name(mark, i))

    # -------------------------------------------------------------------------------------------------- Functions

    def _call_function(self, cls: type[Any], run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        arguments: list[Tensor] = []
        tensors_in(args, arguments)
        with torch._C.DisableTorchFunction():
            begun = self._begin(cls.__name__, arguments, 3)
        if begun is None:
            return run(*args, **kwargs)
        functions = self._thread().functions
        functions.append(begun[0])
        try:
            result = run(*args, **kwargs)
        finally:
            functions.pop()
        results: list[Tensor] = []
        tensors_in(result, results)
        with torch._C.DisableTorchFunction():
            self._end(*begun, results, arguments, False)
        return result


def _function_call(cls: type[Any], run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A call of a custom Function, through every recorder that sees this thread."""
    for recorder in entered_modes(Recorder):
        run = _through(recorder, cls, run)
    return run(*args, **kwargs)


def _through(recorder: Recorder, cls: type[Any], run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: recorder._call_function(cls, run, args, kwargs)
