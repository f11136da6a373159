"""Compilation: `to_static` is torch.compile, `not_to_static` keeps a function out of it."""

from oarlock.paddle.jit.compile import ignore_module, not_to_static, to_static

__all__ = ["ignore_module", "not_to_static", "to_static"]
