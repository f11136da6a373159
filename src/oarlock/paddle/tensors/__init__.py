"""Functions on tensors, by topic. Importing this package declares them all."""

from oarlock.paddle.tensors import (
    binary,
    creation,
    indexing,
    joining,
    linalg,
    logic,
    manipulation,
    math,
    matrices,
    random,
    reduction,
    search,
)

__all__ = [
    "binary",
    "creation",
    "indexing",
    "joining",
    "linalg",
    "logic",
    "manipulation",
    "math",
    "matrices",
    "random",
    "reduction",
    "search",
]
