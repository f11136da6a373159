"""Functions on tensors, by topic. Importing this package declares them all."""

from oarlock.paddle.tensors import (
    binary,
    creation,
    indexing,
    linalg,
    logic,
    manipulation,
    math,
    random,
    reduction,
    search,
)

__all__ = ["binary", "creation", "indexing", "linalg", "logic", "manipulation", "math", "random", "reduction", "search"]
