"""`paddle.sparse.nn.functional`: activations, convolutions, pools and attention of sparse tensors."""

from oarlock.paddle.declare import exports
from oarlock.paddle.sparse.nn.functional import activation, windows
from oarlock.paddle.sparse.nn.functional.attention import attention

globals().update(exports(activation.AT))
__all__ = ["activation", "attention", "windows"]
