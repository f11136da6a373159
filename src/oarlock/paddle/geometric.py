"""`paddle.geometric`: reductions over graphs."""

from oarlock.paddle.declare import exports
from oarlock.paddle.incubate import segments

globals().update(exports(segments.GEOMETRIC))
