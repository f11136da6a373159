"""Joining a job: the process group that torchrun (or Slurm, Kubernetes) describes in the environment."""

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from oarlock.parallel.mesh import Mesh
from oarlock.ranks import JobError

_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@contextmanager
def initialize(
    device: str = "auto",
    *,
    timeout_seconds: float = 600.0,
    data: int = -1,
    context: int = 1,
    tensor: int = 1,
    pipeline: int = 1,
    expert: int = 1,
) -> Iterator[Mesh]:
    """Join the job that the environment describes, for the length of a `with` block, and lay its processes out.

        with initialize() as mesh:
            print(mesh.rank("data"), mesh.size("data"))

    The process group has gloo for CPU tensors and, with CUDA, NCCL for CUDA tensors; the CUDA device of the local rank
    becomes the current one. Outside torchrun (no RANK and WORLD_SIZE) there is no process group and all axes have
    size 1.

    Args:
        device: `auto` (cuda if there is one, else cpu), `cpu` or `cuda`.
        timeout_seconds: a collective that waits longer for another rank fails.
        data, context, tensor, pipeline, expert: sizes of the axes, see Mesh.build.

    Raises:
        ValueError: the environment is incomplete, the sizes do not fit the number of processes, or there are fewer
            CUDA devices than local ranks.
        JobError: the port is in use, rank 0 cannot be reached, or there is a process group already.
    """
    joined = _join(device, timeout_seconds)
    try:
        yield Mesh.build(data, context, tensor, pipeline, expert)
    finally:
        if joined:
            leave()


def leave() -> None:
    """Destroy the process group at the end of a program, and let its threads finish.

    Groups live on in device meshes. A thread of gloo that drops the last reference to a tensor while Python shuts down
    aborts the process ("terminate called without an active exception"), so it gets a moment before.
    """
    dist.destroy_process_group()
    gc.collect()
    time.sleep(0.1)


def _join(device: str, timeout_seconds: float) -> bool:
    """Make the process group; False outside of a job."""
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda, got {device!r}")
    variables = {name: os.environ.get(name) for name in _RANK_VARIABLES}
    if variables["RANK"] is None and variables["WORLD_SIZE"] is None:
        return False
    missing = [name for name, value in variables.items() if value is None]
    if missing:
        raise ValueError(f"the environment sets RANK or WORLD_SIZE but not {', '.join(missing)}; start with torchrun")
    if dist.is_initialized():
        raise JobError("torch.distributed is initialised already; call initialize() once, before anything else")
    rank, world_size, local_rank = (_number(name, variables[name] or "") for name in _RANK_VARIABLES[:3])
    backend = "cpu:gloo,cuda:nccl" if _use_cuda(device, local_rank) else "gloo"
    address = f"{variables['MASTER_ADDR']}:{variables['MASTER_PORT']}"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        if "EADDRINUSE" in str(error) or "address already in use" in str(error).lower():
            raise JobError(
                f"port {variables['MASTER_PORT']} is already in use on this machine; end the other job, or choose "
                "another port (torchrun --master-port PORT, or --standalone for one machine; else set MASTER_PORT)"
            ) from None
        raise JobError(
            f"rank {rank} of {world_size} could not join the job at {address} within {timeout_seconds:.0f} s: "
            "check that all ranks were started, and that MASTER_ADDR and MASTER_PORT are rank 0's"
        ) from error
    return True


def _number(name: str, value: str) -> int:
    if not value.isdecimal():
        raise ValueError(f"the environment sets {name} = {value!r}, which is no number; start with torchrun")
    return int(value)


def _use_cuda(device: str, local_rank: int) -> bool:
    """Whether to work on CUDA, whose device of the local rank is then made the current one."""
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return False
    num_devices = torch.cuda.device_count()
    if local_rank >= num_devices:
        raise ValueError(
            f"local rank {local_rank} needs a CUDA device of its own, this machine has {num_devices}; "
            "start fewer processes per machine, or choose device cpu"
        )
    torch.cuda.set_device(local_rank)
    return True
