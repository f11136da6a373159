"""What a mode of torch does not see, while a recorder is entered: calls of modules and of custom Functions.

What `torch.compile` has made runs eagerly meanwhile: the compiler would trace the recorder, and nobody see the calls of
the program. All of it is in place from the first entered recorder to the last that is left, on any thread, also by an
exception.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.overrides import _get_current_function_mode_stack

_ENGINE = "_engine_run_backward"
_lock = threading.Lock()
_num_entered = 0
_original_apply: Any = None
_original_call: Any = None
_stance: Any = None
_local = threading.local()


def module_stack() -> list[nn.Module]:
    """Modules that this thread is in, outermost first."""
    try:
        return _local.modules
    except AttributeError:
        _local.modules = []
        return _local.modules


def entered_modes(kind: type[Any]) -> list[Any]:
    """Modes of `kind` that see what this thread does, outermost first."""
    return [mode for mode in _get_current_function_mode_stack() if isinstance(mode, kind)]


def install(function_call: Callable[..., Any]) -> None:
    """Begin to note modules, and to hand calls of Functions to `function_call(cls, apply, args, kwargs)`."""
    global _num_entered, _original_apply, _original_call, _stance
    with _lock:
        _num_entered += 1
        if _num_entered > 1:
            return
        if "torch._dynamo" in sys.modules:  # importing it takes seconds, and without it nothing was compiled
            _stance = torch.compiler.set_stance("force_eager")
        original_apply = _original_apply = Function.__dict__["apply"]
        original_call = _original_call = nn.Module.__call__

        def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
            return function_call(cls, original_apply.__get__(None, cls), args, kwargs)

        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            try:
                modules = _local.modules
            except AttributeError:
                modules = module_stack()
            modules.append(self)
            try:
                return original_call(self, *args, **kwargs)
            finally:
                modules.pop()

        def direct_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            try:
                modules = _local.modules
            except AttributeError:
                modules = module_stack()
            modules.append(self)
            try:
                if self._compiled_call_impl is None:
                    return self._call_impl(*args, **kwargs)
                return original_call(self, *args, **kwargs)
            finally:
                modules.pop()

        # Torch's own `__call__` only chooses between these two; without its level a call of a module costs half as much
        # to note. One that somebody else has put there is called.
        is_own = original_call is getattr(nn.Module, "_wrapped_call_impl", None) and hasattr(nn.Module, "_call_impl")
        Function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]
        nn.Module.__call__ = direct_call if is_own else call


def uninstall() -> None:
    """The end of one `install`."""
    global _num_entered, _stance
    with _lock:
        _num_entered -= 1
        if _num_entered == 0:
            if _stance is not None:
                _stance.__exit__(None, None, None)
                _stance = None
            Function.apply = _original_apply
            nn.Module.__call__ = _original_call


def undispatched(function: Any, around_engine: Callable[..., Any]) -> Any:
    """A function of torch written in Python, without its question whether a mode wants to see the call.

    The engine must run while the modes are entered, or they would not see what custom backwards do.

    Args:
        function: `torch.autograd.backward` or `grad`.
        around_engine: called with the engine and its arguments; where torch calls its engine by another name, with
            all of `function`.
    """
    names = {**function.__globals__, "has_torch_function": lambda _: False, "has_torch_function_unary": lambda _: False}
    engine = names.get(_ENGINE)
    if engine is not None:
        names[_ENGINE] = partial(around_engine, engine)
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy if engine is not None else partial(around_engine, copy)
