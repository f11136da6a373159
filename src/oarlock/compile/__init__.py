"""Compile what torch.compile can follow: a cache that says why it missed, and reports of what could not be followed."""

from oarlock.compile.blocks import compile_blocks, forget_compiled, is_compiled
from oarlock.compile.breaks import explain
from oarlock.compile.cache import CompileCache
from oarlock.compile.report import Break, Recompile, Report, TooManyBreaks
from oarlock.compile.watch import Watch

__all__ = [
    "Break",
    "CompileCache",
    "Recompile",
    "Report",
    "TooManyBreaks",
    "Watch",
    "compile_blocks",
    "explain",
    "forget_compiled",
    "is_compiled",
]
