"""Hybrid parallelism under Paddle's names."""

from oarlock.paddle.distributed.communication.group import get_rank as worker_index
from oarlock.paddle.distributed.communication.group import get_world_size as worker_num
from oarlock.paddle.distributed.fleet import layers, meta_parallel, recompute, utils
from oarlock.paddle.distributed.fleet.topology import (
    DistributedStrategy,
    HybridCommunicateGroup,
    get_hybrid_communicate_group,
    init,
)

__all__ = [
    "DistributedStrategy",
    "HybridCommunicateGroup",
    "get_hybrid_communicate_group",
    "init",
    "layers",
    "meta_parallel",
    "recompute",
    "utils",
    "worker_index",
    "worker_num",
]
