# ruff: noqa: F401 - importing the topics declares the functions
"""`paddle.incubate`: fused operations of decoders, reductions over graphs, products with derivatives."""

from oarlock.paddle.declare import exports as _exports
from oarlock.paddle.incubate import autograd, nn
from oarlock.paddle.incubate import sampling as _sampling
from oarlock.paddle.incubate import segments as _segments
from oarlock.paddle.incubate.optimizers import LookAhead, ModelAverage

globals().update(_exports(_segments.INCUBATE))
