"""Guards of Paddle's logs."""

from oarlock.paddle.base import framework

__all__ = ["framework"]
