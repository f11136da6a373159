"""`paddle.audio`: the functions of sound that are plain formulas."""

from oarlock.paddle.audio import functional as functional
