"""Recomputation."""

from oarlock.paddle.distributed.fleet.recompute.recompute import recompute

__all__ = ["recompute"]
