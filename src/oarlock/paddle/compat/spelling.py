"""Refuse Paddle's spellings where torch's meaning is asked for, and name the function that takes them."""

import functools
from collections.abc import Callable
from typing import Any


def torch_spelling(full: str, function: Callable[..., Any], wrong: str, instead: str) -> Callable[..., Any]:
    """`function`, refusing the keywords in `wrong`."""
    refused = frozenset(wrong.split())

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs and (found := sorted(refused & kwargs.keys())):
            plural = "s" if len(found) > 1 else ""
            raise TypeError(
                f"{full}() received unexpected keyword argument{plural} {', '.join(map(repr, found))}. \n"
                f"Did you mean to use {instead}() instead?"
            )
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = full.rpartition(".")[2]
    return call
