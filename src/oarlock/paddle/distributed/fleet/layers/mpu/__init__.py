"""Tensor-parallel parts."""

from oarlock.paddle.distributed.fleet.layers.mpu import random

__all__ = ["random"]
