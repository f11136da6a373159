"""Hybrid parallelism under Paddle's names."""

from oarlock.paddle.distributed.communication.group import get_rank as worker_index
from oarlock.paddle.distributed.communication.group import get_world_size as worker_num
from oarlock.paddle.distributed.fleet import layers, meta_parallel, recompute, utils
from oarlock.paddle.distributed.fleet.model import distributed_model, distributed_optimizer, distributed_scaler
from oarlock.paddle.distributed.fleet.topology import (
    DistributedStrategy,
    HybridCommunicateGroup,
    get_hybrid_communicate_group,
    init,
)


def is_first_worker() -> bool:
    """Whether this process has rank 0."""
    return worker_index() == 0


__all__ = [
    "DistributedStrategy",
    "HybridCommunicateGroup",
    "distributed_model",
    "distributed_optimizer",
    "distributed_scaler",
    "get_hybrid_communicate_group",
    "init",
    "is_first_worker",
    "layers",
    "meta_parallel",
    "recompute",
    "utils",
    "worker_index",
    "worker_num",
]
