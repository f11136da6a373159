"""What the ranks of a job tell each other during a save: JSON texts, gathered as tensors of bytes (no pickle)."""

import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from oarlock.checkpoint.manifest import CheckpointError


class Ranks:
    """The processes that save together: a torch.distributed group, or this process alone.

    Args:
        group: None means all processes if torch.distributed is initialised, else this process alone.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        together = dist.is_initialized()
        self.size = dist.get_world_size(group) if together else 1
        self.rank = dist.get_rank(group) if together else 0
        if self.rank < 0:
            raise ValueError("this process is not in the group that saves the checkpoint")

    def gather(self, value: Any) -> list[Any]:
        """The JSON values of all ranks, on every rank; also a barrier."""
        if self.size == 1:
            return [value]
        device = communication_device(self._group)
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(device)
        sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(data)], device=device), group=self._group)
        longest = max(int(size) for size in sizes)
        padded = torch.zeros(longest, dtype=torch.uint8, device=device)
        padded[: len(data)] = data
        texts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(texts, padded, group=self._group)
        return [json.loads(bytes(t[: int(n)].cpu().numpy())) for t, n in zip(texts, sizes, strict=True)]

    def all_or_none(self, action: Callable[[], Any], failure: str) -> list[Any]:
        """Run `action` on every rank and return what each rank's returned; if one fails, all fail.

        Raises:
            CheckpointError: `failure` with the reasons of the ranks that failed. A rank whose own failure is not about
                the disk (a wrong argument, Ctrl-C) raises that one instead.
        """
        value, error = None, None
        try:
            value = action()
        except BaseException as caught:
            error = caught
        try:
            reports = self.gather({"value": value, "error": None if error is None else describe(error)})
        except RuntimeError as lost:  # what torch.distributed raises when a process is gone or late
            reason = str(lost).partition("\n")[0]
            raise CheckpointError(f"{failure}: lost contact with another rank ({reason})") from (error or lost)
        if error is not None and not isinstance(error, (OSError, CheckpointError)):
            raise error
        reasons = {rank: report["error"] for rank, report in enumerate(reports) if report["error"]}
        if reasons:
            where = "" if self.size == 1 else "rank {}: "
            text = "; ".join(where.format(rank) + reason for rank, reason in reasons.items())
            raise CheckpointError(f"{failure}: {text}") from error
        return [report["value"] for report in reports]


def describe(error: BaseException) -> str:
    """One line for an error; an OSError without the path of the temporary directory."""
    if isinstance(error, OSError) and error.strerror:
        name = str(error.filename).rpartition("/")[2] if error.filename else ""
        return error.strerror + (f" ({name})" if name else "")
    return f"{type(error).__name__}: {error}" if not isinstance(error, CheckpointError) else str(error)


def communication_device(group: dist.ProcessGroup | None) -> torch.device:
    """The CPU if the group has a backend for it, else the current CUDA device (a group with NCCL only)."""
    if "cpu:" in dist.get_backend_config(group):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
