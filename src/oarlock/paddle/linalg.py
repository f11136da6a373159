"""`paddle.linalg`: products, decompositions and norms."""

from oarlock.paddle.declare import exports
from oarlock.paddle.tensors import linalg

globals().update(exports(linalg.AT))
