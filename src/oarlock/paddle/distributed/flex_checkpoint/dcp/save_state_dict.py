"""`save_state_dict`: a distributed state dict as a checkpoint of Oarlock (docs/checkpoints.md)."""

import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from oarlock.checkpoint import Shard, list_checkpoints, save_checkpoint
from oarlock.paddle.distributed.communication.group import Group
from oarlock.paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight
from oarlock.ranks import Ranks


def flatten(state_dict: Mapping[str, Any], prefix: str = "") -> dict[str, Tensor | Shard]:
    """Nested dicts of tensors and parts by names joined by dots.

    Raises:
        TypeError: a value that is neither.
    """
    flat: dict[str, Tensor | Shard] = {}
    for name, value in state_dict.items():
        full = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{full}."))
        elif isinstance(value, ShardedWeight):
            flat[full] = value.to_shard()
        elif isinstance(value, Tensor):
            flat[full] = value
        else:
            raise TypeError(f"{full} is {type(value).__name__}; a state dict here holds tensors and ShardedWeight")
    return flat


def save_state_dict(
    state_dict: Mapping[str, Any],
    path: str | PathLike[str],
    process_group: Group | None = None,
    coordinator_rank: int = 0,
    unique_id: int | None = None,
    async_save: bool = False,
    safetensors: bool = False,
    save_replicas: bool = False,
) -> None:
    """Save tensors, distributed tensors and `ShardedWeight`s; each element is written by one process.

    The checkpoint is `path/step-<unique_id>`, complete and verified or not there at all. `load_state_dict` loads it
    into any layout; `oarlock convert` turns it into files for Paddle itself.

    Args:
        process_group: the processes that save together; None = all.
        coordinator_rank: taken, and not needed.
        unique_id: its number; one above the highest there, by default.
        async_save: go on while it is written.
        safetensors: taken; the files are safetensors in any case.
        save_replicas: each process also writes what it holds and others write.

    Raises:
        CheckpointError: the processes disagree, or the files cannot be written.
    """
    group = None if process_group is None else process_group.process_group
    step = _next_step(path, group) if unique_id is None else unique_id
    save_checkpoint(
        *(Path(path), step),
        tensors={"model": flatten(state_dict)},
        group=group,
        wait=not async_save,
        copies=save_replicas,
        overwrite=True,
    )


def _next_step(path: str | PathLike[str], group: dist.ProcessGroup | None) -> int:
    """One above the highest that any process sees."""
    known = [int(re.findall(r"\d+", found.name)[0]) for found in list_checkpoints(path)]
    return max(Ranks(group).gather(max(known, default=-1))) + 1
