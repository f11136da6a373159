"""`paddle.nn`: the functions of networks and the initialisers."""

from torch.nn import Parameter

from oarlock.paddle.nn import functional, init

__all__ = ["Parameter", "functional", "init"]
