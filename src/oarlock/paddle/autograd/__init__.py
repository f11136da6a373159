"""Own operations with their own backward, and the engine."""

from torch import enable_grad, no_grad, set_grad_enabled

from oarlock.paddle.autograd.backward import backward, hessian, jacobian
from oarlock.paddle.autograd.py_layer import PyLayer, PyLayerContext
from oarlock.paddle.autograd.saved import saved_tensors_hooks
from oarlock.paddle.framework import grad, is_grad_enabled

Function = PyLayer  # the name of torch

__all__ = [
    "Function",
    "PyLayer",
    "PyLayerContext",
    "backward",
    "enable_grad",
    "grad",
    "hessian",
    "is_grad_enabled",
    "jacobian",
    "no_grad",
    "saved_tensors_hooks",
    "set_grad_enabled",
]
