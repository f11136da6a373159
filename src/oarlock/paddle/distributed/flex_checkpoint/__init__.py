"""Checkpoints that fit any layout."""

from oarlock.paddle.distributed.flex_checkpoint import dcp

__all__ = ["dcp"]
