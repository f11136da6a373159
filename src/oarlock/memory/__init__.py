"""Device memory that defragments itself."""

from oarlock.memory.pool import Block, DriverError, OutOfMemoryError, Pool, PoolStats

__all__ = ["Block", "DriverError", "OutOfMemoryError", "Pool", "PoolStats"]
