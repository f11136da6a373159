# ruff: noqa: F401 - importing the topics declares the functions
"""`paddle.nn.functional`: activations, losses, convolution, pooling, normalisation."""

from oarlock.paddle import inplace as _inplace
from oarlock.paddle.declare import REGISTRY as _REGISTRY
from oarlock.paddle.declare import exports as _exports
from oarlock.paddle.nn.functional import activation as _activation
from oarlock.paddle.nn.functional import attention as _attention
from oarlock.paddle.nn.functional import convolution as _convolution
from oarlock.paddle.nn.functional import cross_entropy as _cross_entropy
from oarlock.paddle.nn.functional import flash_attention
from oarlock.paddle.nn.functional import layers as _layers
from oarlock.paddle.nn.functional import loss as _loss
from oarlock.paddle.nn.functional import moe as _moe
from oarlock.paddle.nn.functional import norm as _norm
from oarlock.paddle.nn.functional import pooling as _pooling
from oarlock.paddle.nn.functional import resize as _resize
from oarlock.paddle.nn.functional import sequence_loss as _sequence_loss
from oarlock.paddle.nn.functional import windows as _windows

for _name in ("sigmoid", "tanh", "tanh_", "one_hot", "diag_embed"):
    _REGISTRY[f"paddle.nn.functional.{_name}"] = _REGISTRY[f"paddle.{_name}"]
globals().update(_exports(_activation.AT))
