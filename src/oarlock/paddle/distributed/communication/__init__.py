"""Groups of processes, and messages between them."""

from oarlock.paddle.distributed.communication import collectives, group

__all__ = ["collectives", "group"]
