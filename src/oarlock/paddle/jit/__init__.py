"""Compilation: `to_static` is torch.compile, `not_to_static` keeps a function out of it."""

from oarlock.paddle.jit.compile import (
    enable_to_static,
    ignore_module,
    not_to_static,
    set_code_level,
    set_verbosity,
    to_static,
)

__all__ = ["enable_to_static", "ignore_module", "not_to_static", "set_code_level", "set_verbosity", "to_static"]
