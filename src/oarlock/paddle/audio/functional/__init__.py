"""`paddle.audio.functional`: windows, mel scales and filter banks."""

from oarlock.paddle.audio.functional import mel, window
from oarlock.paddle.declare import exports

globals().update(exports(window.AT))
__all__ = ["mel", "window"]
