"""A batch of packed sequences, and what a loader needs to make batches of.

Letters: B batch, S sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import numpy as np
import torch

from oarlock.attention import ColumnMask
from oarlock.attention.context_parallel import ContextPlan
from oarlock.train.data.packing import Packing

IGNORED = -100


@dataclass(frozen=True)
class Batch:
    """Packed sequences."""

    input_ids: torch.Tensor
    """int64 [B, S]."""
    targets: torch.Tensor
    """int64 [B, S]; -100 where there is nothing to predict (padding, or text that is only given)."""
    position_ids: torch.Tensor
    """int64 [B, S], restarting at 0 with every document."""
    lengths: list[list[int]]
    """Documents (or pieces) of each row in order; they sum to S, padding being the last of a row."""
    num_targets: int
    """Targets that are not -100."""
    num_target_bytes: int
    """UTF-8 bytes of the text behind the targets; nats / (ln 2 * bytes) are the bits per byte."""
    plan: ContextPlan | None = field(default=None, kw_only=True)
    """Context parallelism: the tensors and counts are this process's share; `lengths` and `mask` are of the whole."""

    @property
    def num_losses(self) -> float:
        """What a loss is averaged over: targets."""
        return self.num_targets

    def mask(self, device: torch.device | str) -> ColumnMask:
        """Causal attention inside each document of each row."""
        if self.plan is not None:
            return self.plan.mask.to(device)
        return ColumnMask.causal_document(self.lengths, device=device)

    def shard(self, plan: ContextPlan) -> Self:
        """This process's share of the batch under a plan for its mask; the bytes count on the first rank."""
        targets = plan.shard(self.targets, 1, fill=IGNORED)
        return replace(
            self,
            input_ids=plan.shard(self.input_ids, 1),
            targets=targets,
            position_ids=plan.shard(self.position_ids, 1),
            num_targets=int((targets != IGNORED).sum()),
            num_target_bytes=self.num_target_bytes if plan.rank == 0 else 0,
            plan=plan,
        )

    def to(self, device: torch.device | str) -> Self:
        """The same with its tensors on a device."""
        return replace(
            self,
            input_ids=self.input_ids.to(device, non_blocking=True),
            targets=self.targets.to(device, non_blocking=True),
            position_ids=self.position_ids.to(device, non_blocking=True),
        )


class Packable(Protocol):
    """Documents on disk that a loader can pack into sequences and gather into batches."""

    @property
    def num_documents(self) -> int:
        """Documents, or what else is packed whole."""
        ...

    @property
    def num_targets(self) -> int:
        """Tokens that are predicted."""
        ...

    def pack(self, seq_len: int, generator: np.random.Generator) -> Packing:
        """All documents in sequences of S tokens, in an order that the generator decides."""
        ...

    def assemble(self, seq_len: int, rows: Sequence[tuple[Packing, int] | None]) -> Batch:
        """The batch of some rows of some packings; None stands for a row of padding."""
        ...
