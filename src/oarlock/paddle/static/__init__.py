"""Of the static graph, what eager programs use: the description of an input."""

from oarlock.paddle.static.input import InputSpec

__all__ = ["InputSpec"]
