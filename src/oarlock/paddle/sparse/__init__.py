"""`paddle.sparse`: tensors that store some of their elements, in torch's COO and CSR layouts."""

from oarlock.paddle.declare import exports
from oarlock.paddle.sparse import binary, creation, nn, products, shape, unary

globals().update(exports(creation.AT))
__all__ = ["binary", "creation", "nn", "products", "shape", "unary"]
