"""What the processes of a job tell each other: JSON texts, gathered as tensors of bytes (no pickle)."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor


class JobError(RuntimeError):
    """The processes of a job cannot start or go on together; the message says which, and what to do."""


class OtherRankFailed(RuntimeError):
    """This process has stopped because another one could not go on; that one says why."""


class Ranks:
    """The processes that talk: a torch.distributed group, or this process alone.

    Args:
        group: None means all processes if torch.distributed is initialised, else this process alone.

    Raises:
        ValueError: this process is not in the group.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        together = dist.is_initialized()
        self.size = dist.get_world_size(group) if together else 1
        self.rank = dist.get_rank(group) if together else 0
        if self.rank < 0:
            raise ValueError("this process is not in the given group of processes")

    @classmethod
    def alone(cls) -> Self:
        """This process only, whatever torch.distributed knows."""
        ranks = cls.__new__(cls)
        ranks._group, ranks.size, ranks.rank = None, 1, 0
        return ranks

    def gather(self, value: Any) -> list[Any]:
        """The JSON values of all ranks, on every rank; also a barrier.

        Raises:
            RuntimeError: from torch.distributed, when a process is gone or late.
        """
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

    def all_well(self, well: bool) -> bool:
        """Whether all ranks say so; also a barrier.

        Raises:
            RuntimeError: from torch.distributed, when a process is gone or late.
        """
        if self.size == 1:
            return well
        votes = torch.tensor([well], dtype=torch.int32, device=communication_device(self._group))
        dist.all_reduce(votes, dist.ReduceOp.MIN, group=self._group)
        return bool(votes.item())

    @contextmanager
    def together(self) -> Iterator[None]:
        """All ranks get through the block, or none does; they may exchange bytes in it.

        A rank that fails before an exchange or the end of the block tells the others, who wait for it there.

        Raises:
            OtherRankFailed: another rank failed. Any error of this rank.
        """
        try:
            yield
        except OtherRankFailed:
            raise
        except BaseException:
            self.all_well(False)
            raise
        self._go_on()

    def _go_on(self) -> None:
        if not self.all_well(True):
            raise OtherRankFailed("another rank failed")

    def exchange(self, outgoing: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """Send bytes from every rank to every rank; all ranks call it, in a block of `together`.

        Args:
            outgoing: per receiver, uint8 [n] on the CPU.
            sizes: per sender, how many bytes come from it.

        Returns:
            Per sender, uint8 [n] on the CPU.

        Raises:
            OtherRankFailed: another rank has left the block; nothing was sent.
            RuntimeError: from torch.distributed, when a process is gone or late.
        """
        device = communication_device(self._group)
        received = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
        sent = torch.cat(list(outgoing)).to(device)
        self._go_on()
        dist.all_to_all_single(received, sent, list(sizes), [len(part) for part in outgoing], group=self._group)
        return list(received.cpu().split(list(sizes)))

    @property
    def device(self) -> torch.device:
        """Where tensors must lie to be sent."""
        return communication_device(self._group)

    def start(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> list[dist.Work]:
        """Begin to send bytes to some ranks and to receive from some, point to point as one group; `wait` for each.

        Args:
            outgoing, incoming: peer -> uint8 [n], contiguous, on `device`; the peer names this rank in turn, with the
                same n. Empty on a rank that has nothing to do.
        """
        operations = [
            dist.P2POp(what, tensor, self._global(peer), self._group)
            for what, tensors in ((dist.isend, outgoing), (dist.irecv, incoming))
            for peer, tensor in tensors.items()
        ]
        return dist.batch_isend_irecv(operations) if operations else []

    def _global(self, rank: int) -> int:
        return rank if self._group is None else dist.get_global_rank(self._group, rank)


def communication_device(group: dist.ProcessGroup | None) -> torch.device:
    """The CPU if the group has a backend for it, else the current CUDA device (a group with NCCL only)."""
    if "cpu:" in dist.get_backend_config(group):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
