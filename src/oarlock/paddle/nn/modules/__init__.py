"""`paddle.nn.modules`: the layers' base and containers under torch's paths."""

from oarlock.paddle.nn.modules import container, module
from oarlock.paddle.nn.modules.module import Module

__all__ = ["Module", "container", "module"]
