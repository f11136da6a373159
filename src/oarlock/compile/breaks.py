"""Where `torch.compile` could not follow a program: graph breaks, and functions that run eagerly.

report = explain(model, batch)
print(report)                          # a table: file:line, kind, count, operations lost
report.check(max_breaks=0)             # for CI
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from oarlock.compile.report import Report
from oarlock.compile.watch import Function, Watch, code_being_compiled, function_of


def explain(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
    """Trace one call as `torch.compile` would, without compiling anything, and tell where it could not follow.

    Forget what was compiled before: afterwards everything compiles anew (with a `CompileCache`, quickly).

    Where torch gave a function up, the call is made a second time, eagerly, to count the operations in it. Torch's
    random state, and buffers and gradients of the modules that the call can reach, are as after the first call;
    anything else that the call changes (its arguments, files, what it prints) changes twice.

    Only the forward is traced by torch, and only there are breaks: a backward is derived from the graphs, runs per
    graph, and hooks of tensors run eagerly in it.

    Args:
        model: module or function.
        args, kwargs: of the call. To see what makes it compile again, call a compiled model within `Watch()`.

    Returns:
        the report; graphs and operations are those of this call.

    Raises:
        whatever the model raises.
    """
    watch = Watch()
    watch.report.num_graphs = watch.report.num_ops = 0
    compiled = watch.compiled

    def count(graph: torch.fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
        watch.report.num_graphs = (watch.report.num_graphs or 0) + 1
        num_calls = sum(node.op.startswith("call_") for node in graph.graph.nodes)
        watch.report.num_ops = (watch.report.num_ops or 0) + num_calls
        if (code := code_being_compiled()) is not None:
            compiled.add(function_of(code))
        return graph.forward

    torch.compiler.reset()
    try:
        with watch:
            torch.compile(model, backend=count)(*args, **kwargs)
    finally:
        torch.compiler.reset()
    report = watch.report
    if watch.given_up:
        with _kept(_modules([model, *args, *kwargs.values()])):
            lost = _count_in(watch.given_up.values(), compiled, lambda: model(*args, **kwargs))
        report.breaks = [
            replace(each, ops_lost=lost[watch.given_up[each]]) if each in watch.given_up else each
            for each in report.breaks
        ]
    return report


def _count_in(given_up: Iterable[Function], compiled: set[Function], call: Callable[[], object]) -> Counter[Function]:
    """Calls of torch's API whose nearest function that torch traced is one that it gave up."""
    counts: Counter[Function] = Counter()
    lost = {(each.file, each.name): each for each in given_up}
    kept = {(each.file, each.name) for each in compiled - set(given_up)} - set(lost)

    def place(frame: FrameType | None) -> Function | None:
        while frame is not None:
            function = (frame.f_code.co_filename, frame.f_code.co_qualname)
            if function in kept:
                return None
            # What torch resumed behind a break was given up from there on.
            if function in lost and frame.f_lineno >= lost[function].begins:
                return lost[function]
            frame = frame.f_back
        return None

    class Counting(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if (found := place(sys._getframe(1))) is not None:
                counts[found] += 1
            return function(*args, **(kwargs or {}))

    with Counting():
        call()
    return counts


def _modules(values: Iterable[Any]) -> list[nn.Module]:
    """Modules among values, and those that functions among them name, are bound to, or were given."""
    found: list[nn.Module] = []
    for value in values:
        if isinstance(value, nn.Module):
            found.append(value)
        elif isinstance(value, functools.partial):
            found += _modules([value.func, *value.args, *value.keywords.values()])
        elif inspect.ismethod(value):
            found += _modules([value.__self__, value.__func__])
        elif inspect.isfunction(value):
            names = inspect.getclosurevars(value)
            named = [*names.nonlocals.values(), *names.globals.values(), *(value.__defaults__ or ())]
            found += [each for each in named if isinstance(each, nn.Module)]
    return found


@contextmanager
def _kept(modules: list[nn.Module]) -> Iterator[None]:
    """Put torch's random state, buffers and gradients back."""
    buffers = [(buffer, buffer.detach().clone()) for module in modules for buffer in module.buffers()]
    weights = [weight for module in modules for weight in module.parameters()]
    gradients: list[tuple[nn.Parameter, Tensor | None, Tensor | None]] = [
        (weight, weight.grad, None if weight.grad is None else weight.grad.detach().clone()) for weight in weights
    ]
    with torch.random.fork_rng():
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
                for weight, gradient, before in gradients:
                    weight.grad = gradient
                    if gradient is not None and before is not None:
                        gradient.copy_(before)
