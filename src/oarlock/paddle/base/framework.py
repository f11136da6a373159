"""Logs of the operations of a block, by `oarlock.debug.loglevel`: logger `oarlock.debug`, levels 0 to 3."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from oarlock import debug
from oarlock.paddle.framework import in_dynamic_mode, in_dynamic_or_pir_mode, in_pir_mode, is_compiled_with_cuda
from oarlock.paddle.nn.parameter import Parameter

EagerParamBase = Parameter


class Variable:
    """What tensors are in static graphs; no tensor is one here."""


in_dygraph_mode = in_dynamic_mode

__all__ = [
    "EagerParamBase",
    "Variable",
    "backward_vlog_guard",
    "in_dygraph_mode",
    "in_dynamic_mode",
    "in_dynamic_or_pir_mode",
    "in_pir_mode",
    "is_compiled_with_cuda",
    "vlog_guard",
]


@contextlib.contextmanager
def vlog_guard(module_levels: int | Mapping[str, int]) -> Iterator[None]:
    """Log the calls of the block.

    Args:
        module_levels: a level from 0 to 3 (larger ones are 3); or a level for each layer, by its name in the model.
            (Paddle's own dict names C++ files, which do not exist here.)
    """
    levels = module_levels if isinstance(module_levels, Mapping) else {"": module_levels}
    with contextlib.ExitStack() as stack:
        for name, level in levels.items():
            stack.enter_context(debug.loglevel(_level(level), modules=[name] if name else []))
        yield


@contextlib.contextmanager
def backward_vlog_guard(level: int) -> Iterator[None]:
    """Log the calls of the block, and the backward nodes that it makes when they run, also after it."""
    with debug.loglevel(_level(level), backward=True):
        yield


def _level(level: int) -> int:
    return max(0, min(int(level), 3))
