"""`to_static` and `not_to_static` by torch's compiler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch._logging._internal import set_logs


def to_static(
    function: Any = None, input_spec: Any = None, build_strategy: Any = None, backend: Any = "CINN", **kwargs: Any
) -> Any:
    """A function or layer that torch.compile compiles when it is first called; also as a decorator.

    Args:
        function: what to compile; a layer is compiled in place.
        input_spec, build_strategy: taken: shapes are those of the calls.
        backend: None keeps the function as it is; "CINN" is torch's inductor.
        kwargs: of torch.compile: `fullgraph` (Paddle's `full_graph`).
    """
    full = bool(kwargs.pop("full_graph", kwargs.pop("fullgraph", False)))

    def compiled(target: Any) -> Any:
        if backend is None or not _is_enabled or _is_strict():
            return target  # the tensors of strict mode run eagerly only
        if isinstance(target, nn.Module):
            target.compile(fullgraph=full)
            return target
        return torch.compile(target, fullgraph=full)

    return compiled if function is None else compiled(function)


_is_enabled = True


def _is_strict() -> bool:
    from oarlock.paddle.strict import is_strict

    return is_strict()


def enable_to_static(enable_to_static_bool: bool) -> None:
    """Whether `to_static` compiles from now on; False leaves functions as they are."""
    global _is_enabled
    _is_enabled = bool(enable_to_static_bool)


def set_verbosity(level: int = 0, also_to_stdout: bool = False) -> None:
    """How much the compiler tells of its work: 0 nothing, 1 what it compiles, more: every step."""
    log = logging.WARNING if level <= 0 else logging.INFO if level == 1 else logging.DEBUG
    set_logs(dynamo=log)


def set_code_level(level: int = 100, also_to_stdout: bool = False) -> None:
    """Log the code that the compiler makes of functions; 0 ends it."""
    set_logs(bytecode=level > 0)


def not_to_static(func: Callable[..., Any] | None = None) -> Any:
    """Keep a function out of compiled code: it runs eagerly between graphs; also as a decorator."""
    return torch.compiler.disable if func is None else torch.compiler.disable(func)


def ignore_module(modules: Sequence[Any]) -> None:
    """Keep all functions of modules out of compiled code."""
    for module in modules:
        for name, value in vars(module).items():
            if callable(value) and getattr(value, "__module__", "") == module.__name__:
                setattr(module, name, torch.compiler.disable(value))
