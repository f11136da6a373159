"""One door to all recorders."""

from __future__ import annotations

import os
from typing import overload

import torch

from oarlock.memory.pool import Pool
from oarlock.memory.pool_recorder import PoolRecorder
from oarlock.memory.tensor_recorder import TensorRecorder


@overload
def record(
    of: str | torch.device = ...,
    *,
    num_events: int = ...,
    stacks: bool = ...,
    min_stack_bytes: int = ...,
    on_oom: str | os.PathLike[str] | None = ...,
) -> TensorRecorder: ...
@overload
def record(
    of: Pool,
    *,
    num_events: int = ...,
    stacks: bool = ...,
    min_stack_bytes: int = ...,
    on_oom: str | os.PathLike[str] | None = ...,
) -> PoolRecorder: ...
def record(
    of: str | torch.device | Pool = "cpu",
    *,
    num_events: int = 1 << 20,
    stacks: bool = False,
    min_stack_bytes: int = 0,
    on_oom: str | os.PathLike[str] | None = None,
) -> TensorRecorder | PoolRecorder:
    """A recorder, to be entered.

    Args:
        of: a pool, or a device whose tensors are recorded: "cpu" or "meta".
        num_events: how many of the last events are kept.
        stacks: note where in the program each allocation is made.
        min_stack_bytes: smaller allocations get no stack.
        on_oom: file that is written where memory runs out; the error names it.

    Raises:
        ValueError: a device whose allocations cannot be recorded.
    """
    if isinstance(of, Pool):
        return PoolRecorder(of, num_events=num_events, stacks=stacks, min_stack_bytes=min_stack_bytes, on_oom=on_oom)
    kind = torch.device(of).type
    if kind not in ("cpu", "meta"):
        raise ValueError(f"allocations of cpu and meta can be recorded, not of {of}")
    return TensorRecorder(kind, num_events=num_events, stacks=stacks, min_stack_bytes=min_stack_bytes, on_oom=on_oom)
