"""Batches for training, endless and resumable at any step, and for evaluation, every target once.

    loader = PackedLoader(data.train, seq_len=2048, batch_size=4, seed=0)
    batch = loader.next_batch()
    state = loader.state_dict()          # JSON; load_state_dict continues with the next batch, bit for bit

The rows of epoch after epoch form one sequence, and each step of all ranks takes the next world_size * batch_size of
them. So a batch may span two epochs, no row is dropped or repeated, and a run may resume with another world size.

Letters: B batch, S sequence.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch.distributed as dist

from oarlock.attention.context_parallel import plan_context_parallel
from oarlock.train.data.batch import Batch, Packable
from oarlock.train.data.packing import Packing


class PackedLoader:
    """Endless training batches of one rank; a pure function of (documents, S, seed) and the rows taken so far.

    Args:
        documents: what is packed.
        seq_len: tokens S per sequence.
        batch_size: sequences B per rank and batch.
        seed: decides packing and order, together with the epoch.
        rank, world_size: this process among those that share the data.
        context: the processes among which every batch is shared out along the sequence, all with the same rank above;
            None = it is not.

    Raises:
        ValueError: a size below 1, or a rank outside the world.
    """

    def __init__(
        self,
        documents: Packable,
        seq_len: int,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        context: dist.ProcessGroup | None = None,
    ):
        _check_sizes(batch_size, rank, world_size)
        self._documents = documents
        self._seq_len = seq_len
        self._batch_size = batch_size
        self._seed = seed
        self._rank = rank
        self._world_size = world_size
        self._context = context
        self._epoch = 0
        self._position = 0
        self._packings: dict[int, Packing] = {}
        self._packing(0)

    @property
    def epoch(self) -> int:
        """Epoch of the next row, from 0."""
        return self._epoch

    @property
    def packing(self) -> Packing:
        """How the documents are packed in the current epoch."""
        return self._packing(self._epoch)

    def next_batch(self) -> Batch:
        """The next B rows of this rank."""
        first = self._rank * self._batch_size
        rows = self._take(self._batch_size * self._world_size)[first : first + self._batch_size]
        return _share(self._documents.assemble(self._seq_len, rows), self._context)

    def state_dict(self) -> dict[str, int]:
        """Where the next batch begins: the row within an epoch, counted over all ranks; and what it depends on."""
        return {"epoch": self._epoch, "position": self._position, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the last batch of `state`; batch size and world size may differ.

        Raises:
            ValueError: the state is of other documents, another sequence length or another seed.
        """
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise ValueError(f"cannot resume the data here: {name} was {state.get(name)}, now it is {value}")
        self._epoch, self._position = int(state["epoch"]), int(state["position"])
        num_rows = self.packing.num_rows
        if not 0 <= self._position < num_rows:
            raise ValueError(f"the loader's position {self._position} lies outside the {num_rows} rows of an epoch")

    def _identity(self) -> dict[str, int]:
        return {
            "seed": self._seed,
            "seq_len": self._seq_len,
            "num_documents": self._documents.num_documents,
            "num_targets": self._documents.num_targets,
        }

    def _take(self, count: int) -> list[tuple[Packing, int]]:
        rows = []
        while len(rows) < count:
            packing = self._packing(self._epoch)
            end = min(self._position + count - len(rows), packing.num_rows)
            rows += [(packing, row) for row in range(self._position, end)]
            self._position = end
            if end == packing.num_rows:
                self._epoch, self._position = self._epoch + 1, 0
        return rows

    def _packing(self, epoch: int) -> Packing:
        if epoch not in self._packings:
            generator = np.random.default_rng((self._seed, epoch))
            self._packings = {epoch: self._documents.pack(self._seq_len, generator)}
        return self._packings[epoch]


class EvaluationLoader:
    """All documents once over all ranks, in equally many batches of B rows each; rows of padding fill the last ones.

    Args: as `PackedLoader`; there is no seed.
    """

    def __init__(
        self,
        documents: Packable,
        seq_len: int,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        context: dist.ProcessGroup | None = None,
    ):
        _check_sizes(batch_size, rank, world_size)
        self._documents = documents
        self._batch_size = batch_size
        self._rank = rank
        self._world_size = world_size
        self._context = context
        self.packing = documents.pack(seq_len, np.random.default_rng(0))

    def __len__(self) -> int:
        """Batches of each rank."""
        return -(-self.packing.num_rows // (self._batch_size * self._world_size))

    def __iter__(self) -> Iterator[Batch]:
        for index in range(len(self)):
            first = (index * self._world_size + self._rank) * self._batch_size
            rows = range(first, first + self._batch_size)
            taken = [(self.packing, row) if row < self.packing.num_rows else None for row in rows]
            yield _share(self._documents.assemble(self.packing.seq_len, taken), self._context)


def _share(batch: Batch, context: dist.ProcessGroup | None) -> Batch:
    return batch if context is None else batch.shard(plan_context_parallel(batch.mask("cpu"), context))


def _check_sizes(batch_size: int, rank: int, world_size: int) -> None:
    if batch_size < 1 or world_size < 1:
        raise ValueError(f"batch_size = {batch_size}, world_size = {world_size}: must be at least 1")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank = {rank}: must lie in 0 .. {world_size - 1}")
