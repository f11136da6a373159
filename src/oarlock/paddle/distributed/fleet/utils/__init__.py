"""`recompute`, and sequence parallelism."""

from oarlock.paddle.distributed.fleet.recompute import recompute
from oarlock.paddle.distributed.fleet.utils import sequence_parallel_utils

__all__ = ["recompute", "sequence_parallel_utils"]
