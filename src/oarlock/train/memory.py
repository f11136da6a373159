"""Tells what a run did to memory, at its end or where memory runs out."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from oarlock import memory
from oarlock.train.config import MemoryConfig


def record_path(config: MemoryConfig, rank: int) -> Path:
    """What a rank writes its recording to; others than the first put their number into the file's name."""
    path = Path(config.record)
    return path if rank == 0 else path.with_name(f"{path.stem}-rank{rank}{path.suffix}")


@contextmanager
def recorded(
    config: MemoryConfig,
    model: torch.nn.Module,
    optimizers: Iterable[torch.optim.Optimizer],
    device: torch.device,
    rank: int,
) -> Iterator[None]:
    """Record the allocations of the block, where the configuration asks for it, and write them when it is left.

    Args:
        config: what to write, and how much of it.
        model, optimizers: whose tensors are named.
        device: where they live.
        rank: of this process.

    Raises:
        memory.OutOfMemoryError: in place of the device's error; the message names the file.
    """
    if not config.record:
        yield
        return
    path = record_path(config, rank)
    with memory.record(device, num_events=config.events, stacks=config.stacks, on_oom=path) as recorder:
        recorder.watch(model, optimizers)
        yield
    memory.write(recorder.recording(), path)
