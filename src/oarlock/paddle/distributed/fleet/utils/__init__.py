"""`recompute`, and sequence parallelism."""

from oarlock.paddle.distributed.fleet.recompute import recompute
from oarlock.paddle.distributed.fleet.utils import hybrid_parallel_util, sequence_parallel_utils

__all__ = ["hybrid_parallel_util", "recompute", "sequence_parallel_utils"]
