"""Refuse Paddle's spellings where torch's meaning is asked for, and name the function that takes them."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from oarlock.paddle.declare import wrong_spelling


def torch_spelling(full: str, function: Callable[..., Any], wrong: str, instead: str) -> Callable[..., Any]:
    """`function`, refusing the keywords in `wrong`."""
    refused = frozenset(wrong.split())

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs and (found := refused & kwargs.keys()):
            raise wrong_spelling(full, found, instead)
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = full.rpartition(".")[2]
    return call


def torch_module(name: str, base: type[torch.nn.Module], wrong: str) -> Any:
    """A subclass of a module of torch whose constructor refuses the keywords in `wrong`."""
    refused = frozenset(wrong.split())

    class Module(base):  # type: ignore[misc, valid-type]
        @functools.wraps(base.__init__)
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            if found := refused & kwargs.keys():
                raise wrong_spelling(f"paddle.compat.nn.{name}", found, f"paddle.nn.{name}")
            super().__init__(*args, **kwargs)

    Module.__name__ = Module.__qualname__ = name
    Module.__module__ = "oarlock.paddle.compat.nn"
    Module.__doc__ = base.__doc__
    return Module
