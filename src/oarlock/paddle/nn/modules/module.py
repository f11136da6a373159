"""The base of all layers."""

from oarlock.paddle.nn.layer.layers import Layer

Module = Layer

__all__ = ["Layer", "Module"]
