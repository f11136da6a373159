"""Device memory that defragments itself, and what happens to memory, told."""

from oarlock.memory.cuda_allocator import use_pool_for_cuda
from oarlock.memory.events import Recording
from oarlock.memory.export import SUFFIXES, write
from oarlock.memory.pool import DriverError, OutOfMemoryError, Pool, is_out_of_memory
from oarlock.memory.pool_recorder import PoolRecorder
from oarlock.memory.pool_stats import Block, PoolStats
from oarlock.memory.recorders import record
from oarlock.memory.region import Region, Survivor, region
from oarlock.memory.replay import ALLOCATORS, Replay, min_capacity, replay
from oarlock.memory.snapshot_reader import read_torch_snapshot
from oarlock.memory.sources import span
from oarlock.memory.summary import memory_summary
from oarlock.memory.tensor_recorder import TensorRecorder
from oarlock.memory.tensors import empty
from oarlock.memory.trace import Trace
from oarlock.memory.trace_recorder import TraceRecorder
from oarlock.memory.window import window

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
    "memory_summary",
    "min_capacity",
    "read_torch_snapshot",
    "record",
    "region",
    "replay",
    "span",
    "use_pool_for_cuda",
    "window",
    "write",
]
