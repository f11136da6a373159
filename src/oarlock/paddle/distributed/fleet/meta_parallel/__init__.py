"""Tensor-parallel parts of a model."""

from oarlock.paddle.distributed.fleet.cross_entropy import ParallelCrossEntropy
from oarlock.paddle.distributed.fleet.layers.mpu.random import RNGStatesTracker, get_rng_state_tracker

__all__ = ["ParallelCrossEntropy", "RNGStatesTracker", "get_rng_state_tracker"]
