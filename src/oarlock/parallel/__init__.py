"""Parallelism over torch.distributed: the mesh of processes, joining a job, and data parallelism."""

from oarlock.parallel.data import broadcast_tensors, check_replicas, group_size, reduce_gradients, sum_scalars
from oarlock.parallel.launch import initialize, leave
from oarlock.parallel.mesh import Mesh

__all__ = [
    "Mesh",
    "broadcast_tensors",
    "check_replicas",
    "group_size",
    "initialize",
    "leave",
    "reduce_gradients",
    "sum_scalars",
]
