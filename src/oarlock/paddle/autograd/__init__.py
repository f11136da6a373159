"""Own operations with their own backward, and the engine."""

from oarlock.paddle.autograd.backward import backward, hessian, jacobian
from oarlock.paddle.autograd.py_layer import PyLayer, PyLayerContext
from oarlock.paddle.autograd.saved import saved_tensors_hooks

Function = PyLayer  # the name of torch

__all__ = ["Function", "PyLayer", "PyLayerContext", "backward", "hessian", "jacobian", "saved_tensors_hooks"]
