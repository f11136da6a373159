"""`paddle.vision`: the operations of detectors."""

from oarlock.paddle.vision import ops

__all__ = ["ops"]
