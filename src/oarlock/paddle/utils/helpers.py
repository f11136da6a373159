"""Small helpers of programs: versions, optional imports, deprecations, a check of the installation."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from oarlock.paddle.version import full_version


def try_import(module_name: str, err_msg: str | None = None) -> ModuleType:
    """The module.

    Raises:
        ImportError: it is not installed; `err_msg`, or a hint how to install it.
    """
    try:
        return importlib.import_module(module_name)
    except ImportError:
        hint = f"Failed importing {module_name}. This likely means that some modules need to be installed with pip."
        raise ImportError(err_msg or hint) from None


def require_version(min_version: str, max_version: str | None = None) -> None:
    """Check the version of Paddle that this namespace follows.

    Raises:
        TypeError: a version that is no text; ValueError: one that is no version; RuntimeError: out of the range.
    """
    if not isinstance(min_version, str) or not isinstance(max_version, str | None):
        raise TypeError(f"versions are texts such as '3.2.0', got {min_version!r} and {max_version!r}")
    here = _parts(full_version)
    if here < _parts(min_version) or (max_version is not None and here > _parts(max_version)):
        wanted = f"from {min_version}" + (f" to {max_version}" if max_version else "")
        raise RuntimeError(f"this namespace follows Paddle {full_version}, the program asks for one {wanted}")


def _parts(version: str) -> tuple[int, ...]:
    parts = version.split(".")
    if not all(part.isdigit() for part in parts):
        raise ValueError(f"{version!r} is no version; write numbers with dots between, such as '3.2.0'")
    return tuple(map(int, parts))


def deprecated(
    update_to: str = "", since: str = "", reason: str = "", level: int = 0
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a function: calls warn (level 0 and 1) or raise RuntimeError (level 2)."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        text = f'"{function.__module__}.{function.__qualname__}" is deprecated'
        text += f" since {since}" if since else ""
        text += f"; use {update_to} instead" if update_to else ""
        text += f". Reason: {reason}" if reason else ""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if level == 2:
                raise RuntimeError(text)
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            return function(*args, **kwargs)

        return call

    return mark


def run_check() -> None:
    """Run a matrix product forward and backward on the default device, and say where it ran."""
    device = torch.get_default_device()
    x = torch.ones(2, 3, device=device, requires_grad=True)
    (x @ torch.ones(3, 2, device=device)).sum().backward()
    assert x.grad is not None
    assert bool((x.grad == 2).all())
    print(f"oarlock.paddle (Paddle's API of {full_version} on torch {torch.__version__}) works on {device}.")
