"""Functions on tensors, by topic. Importing this package declares them all."""

from oarlock.paddle.tensors import (
    binary,
    conversion,
    creation,
    decomposition,
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
    "conversion",
    "creation",
    "decomposition",
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
