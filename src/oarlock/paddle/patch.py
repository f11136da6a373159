"""`patch_tensor()`: Paddle's names and spellings on torch.Tensor, opt-in and removable.

A name that torch.Tensor lacks (`astype`, `stop_gradient`, `gather_nd`) is added. Where both have a name, torch's method
stays what it is: only a call that it refuses (`x.split(2, axis=1)`, `x.transpose([1, 0])`, `x.numpy()` of a tensor that
requires a gradient) is tried again in Paddle's meaning. So no call that worked changes.
"""

import functools
import importlib.resources
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import REGISTRY
from oarlock.paddle.operators import INDEXING
from oarlock.paddle.properties import PROPERTIES

REFUSALS = (TypeError, RuntimeError, ValueError, IndexError)
REPLACED = {"name", "is_sparse", "is_sparse_csr"}  # attributes of both that keep torch's value as far as it has one
VALUES = {"grad", "shape"}  # functions of the namespace whose names are attributes of tensors, not methods
_MISSING = object()
_MOST_KINDS = 256  # of one method
_added: list[str] = []
_patched: dict[str, Any] = {}  # name -> what torch.Tensor itself had, `_MISSING` for nothing


@functools.cache
def tensor_names() -> dict[str, bool]:
    """The public names of Paddle's tensors, and whether torch.Tensor lacks them."""
    text = importlib.resources.files("oarlock.paddle").joinpath("tensor_names.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {line.removesuffix(" *"): line.endswith(" *") for line in lines}


def method_functions() -> dict[str, Callable[..., Any]]:
    """The declared functions that are methods of Paddle's tensors, by name."""
    found: dict[str, Callable[..., Any]] = {}
    for name in (*tensor_names(), "_md5sum"):
        for where in ("paddle.Tensor", "paddle", "paddle.linalg", "paddle.nn.functional", "paddle.tensor"):
            declaration = REGISTRY.get(f"{where}.{name}")
            if declaration and name not in VALUES:
                found[name] = declaration.function
                break
    return found


def patch_tensor(copy_arrays: bool = False) -> list[str]:
    """Give torch.Tensor the names and spellings of Paddle's tensors. Returns the names that torch lacks.

    `unpatch_tensor` takes them away again. No call that torch accepts changes its meaning: where the two disagree,
    as in `x.max(1)`, a plain tensor goes on as torch's; `paddle.Tensor.max(x, 1)` and `paddle.strict()` are Paddle's.

    Args:
        copy_arrays: `x.numpy()` and `numpy.asarray(x)` give a copy, as in Paddle, where torch lends its memory:
            arrays that a program keeps then do not change when the next step writes into the tensor.
    """
    for name, attribute in {**method_functions(), **PROPERTIES}.items():
        if name in _patched:
            continue
        native = getattr(Tensor, name, None)
        if native is None:
            _added.append(name)
            _set(name, attribute)
        elif name in REPLACED:
            _set(name, attribute)
        elif name == "backward":
            _set(name, _backward(native, attribute))
        elif callable(native) and callable(attribute):
            method = _asking(name, native, attribute)
            _set(name, _reshape(method, attribute) if name == "reshape" else method)
    for name, function in INDEXING.items():
        if name not in _patched:
            _set(name, _asking(name, getattr(Tensor, name), function))
    if copy_arrays and getattr(Tensor.numpy, "__name__", "") != _COPYING:
        _set("numpy", _copying(Tensor.numpy))
    return sorted(_added)


def unpatch_tensor() -> None:
    """Remove what `patch_tensor` added."""
    for name, before in _patched.items():
        if before is _MISSING:
            delattr(Tensor, name)
        else:
            setattr(Tensor, name, before)
    _patched.clear()
    _added.clear()


def _set(name: str, attribute: Any) -> None:
    _patched.setdefault(name, Tensor.__dict__.get(name, _MISSING))
    setattr(Tensor, name, attribute)


def _asking(name: str, native: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """`native`, and `function` for the calls that it refuses."""
    changes = name.endswith("_") and not name.endswith("__")
    refusals: Any = (TypeError, ValueError) if changes else REFUSALS  # of changes, those before they begin

    refused_kinds: set[Any] = set()  # of arguments: what torch has refused by their types it will refuse again

    def method(*args: Any, **kwargs: Any) -> Any:
        if refused_kinds and not torch.compiler.is_compiling() and _kinds(args, kwargs) in refused_kinds:
            made = _directly(function, args, kwargs)
            if made is not _MISSING:
                return made
        try:
            return native(*args, **kwargs)
        except refusals as refused:
            made = _again(refused, function, args, kwargs)
            if type(refused) is TypeError and len(refused_kinds) < _MOST_KINDS:
                refused_kinds.add(_kinds(args, kwargs))
            return made

    for word in ("__name__", "__qualname__", "__doc__", "__module__"):
        setattr(method, word, getattr(native, word, None))
    method.__wrapped__ = native  # type: ignore[attr-defined]
    return method


def _backward(native: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """`x.backward` that knows what torch would refuse, for a pass that failed half-way must not run again."""

    @functools.wraps(native)
    def backward(self: Tensor, gradient: Any = None, *args: Any, **kwargs: Any) -> None:
        if "grad_tensor" in kwargs:
            return function(self, *(() if gradient is None else (gradient,)), *args, **kwargs)
        if gradient is None and (self.numel() != 1 or self.is_complex()):
            gradient = torch.ones_like(self)
        return native(self, gradient, *args, **kwargs)

    return backward


def _reshape(method: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """`x.reshape` that knows shapes which torch refuses in any case: a 0, which in Paddle keeps a size, of elements."""

    @functools.wraps(method)
    def reshape(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) is list and 0 in args[0] and self.numel():
            sizes = self.shape
            if len(args) == 1 and not kwargs and 0 not in args[0][len(sizes) :]:
                return method(self, [each or sizes[i] for i, each in enumerate(args[0])])
            return function(self, *args, **kwargs)
        return method(self, *args, **kwargs)

    return reshape


_COPYING = "copied_to_numpy"


def _copying(lending: Callable[..., Any]) -> Callable[..., Any]:
    """`x.numpy` that copies, for all but this package, which reads files and fills buffers through torch's view."""

    def copied_to_numpy(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        array = lending(self, *args, **kwargs)
        return array if sys._getframe(1).f_globals.get("__name__", "").startswith("oarlock.") else array.copy()

    return copied_to_numpy


_now = threading.local()  # its `asking`: Paddle's function runs, so that a refusal within it stands


def _kinds(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The types of arguments, and of what lists hold; torch parses a call by these alone."""
    kinds = tuple([(type(v), *map(type, v)) if type(v) is list or type(v) is tuple else type(v) for v in args])
    return (*kinds, *((key, _kinds((value,), {})) for key, value in kwargs.items())) if kwargs else kinds


def _directly(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Paddle's answer without asking torch first; `_MISSING` where Paddle refuses, too, or is being asked already."""
    if getattr(_now, "asking", False):
        return _MISSING
    _now.asking = True
    try:
        return function(*args, **kwargs)
    except TypeError:
        return _MISSING
    finally:
        _now.asking = False


def _again(refused: Exception, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(refused, torch.OutOfMemoryError) or getattr(_now, "asking", False):
        raise refused
    _now.asking = True
    try:
        return function(*args, **kwargs)
    except TypeError:
        raise refused from None
    except REFUSALS as error:
        # Torch did not know the spelling and Paddle did not like the values: the latter helps.
        raise (error if isinstance(refused, TypeError) else refused) from None
    finally:
        _now.asking = False
