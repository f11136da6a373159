# ruff: noqa: F401 - importing the topics declares the functions
"""`paddle.incubate.nn.functional`: the fused operations of decoders."""

from oarlock.paddle.declare import exports as _exports
from oarlock.paddle.incubate.nn.functional import attention as _attention
from oarlock.paddle.incubate.nn.functional import balance as _balance
from oarlock.paddle.incubate.nn.functional import decoding as _decoding
from oarlock.paddle.incubate.nn.functional import fp8
from oarlock.paddle.incubate.nn.functional import linear as _linear
from oarlock.paddle.incubate.nn.functional import norm as _norm
from oarlock.paddle.incubate.nn.functional import rope as _rope
from oarlock.paddle.incubate.nn.functional import routing as _routing
from oarlock.paddle.nn import functional as _functional

globals().update(_exports(_linear.AT))
