"""Device memory that defragments itself."""

from oarlock.memory.pool import Block, DriverError, OutOfMemoryError, Pool, PoolStats
from oarlock.memory.replay import ALLOCATORS, Replay, min_capacity, replay
from oarlock.memory.tensors import empty
from oarlock.memory.trace import Trace
from oarlock.memory.trace_recorder import TraceRecorder

__all__ = [
    "ALLOCATORS",
    "Block",
    "DriverError",
    "OutOfMemoryError",
    "Pool",
    "PoolStats",
    "Replay",
    "Trace",
    "TraceRecorder",
    "empty",
    "min_capacity",
    "replay",
]
