"""Device memory that defragments itself."""

from oarlock.memory.pool import Block, DriverError, OutOfMemoryError, Pool, PoolStats
from oarlock.memory.tensors import empty

__all__ = ["Block", "DriverError", "OutOfMemoryError", "Pool", "PoolStats", "empty"]
