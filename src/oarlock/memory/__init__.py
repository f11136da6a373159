"""Device memory that defragments itself, and what happens to memory, told."""

from oarlock.memory.events import Recording
from oarlock.memory.export import SUFFIXES, write
from oarlock.memory.pool import Block, DriverError, OutOfMemoryError, Pool, PoolStats, is_out_of_memory
from oarlock.memory.pool_recorder import PoolRecorder
from oarlock.memory.recorders import record
from oarlock.memory.region import Region, Survivor, region
from oarlock.memory.replay import ALLOCATORS, Replay, min_capacity, replay
from oarlock.memory.sources import span
from oarlock.memory.tensor_recorder import TensorRecorder
from oarlock.memory.tensors import empty
from oarlock.memory.trace import Trace
from oarlock.memory.trace_recorder import TraceRecorder

__all__ = [
    "ALLOCATORS",
    "SUFFIXES",
    "Block",
    "DriverError",
    "OutOfMemoryError",
    "Pool",
    "PoolRecorder",
    "PoolStats",
    "Recording",
    "Region",
    "Replay",
    "Survivor",
    "TensorRecorder",
    "Trace",
    "TraceRecorder",
    "empty",
    "is_out_of_memory",
    "min_capacity",
    "record",
    "region",
    "replay",
    "span",
    "write",
]
