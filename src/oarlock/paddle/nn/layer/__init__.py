"""The layers of paddle.nn."""

from oarlock.paddle.nn.layer import containers, functions, layers, norm, weighted
from oarlock.paddle.nn.layer.layers import Layer

__all__ = ["Layer", "containers", "functions", "layers", "norm", "weighted"]
