"""`paddle.geometric`: reductions over graphs."""

from oarlock.paddle.declare import exports
from oarlock.paddle.incubate import sampling, segments

globals().update(exports(segments.GEOMETRIC))
__all__ = ["sampling", "segments"]
