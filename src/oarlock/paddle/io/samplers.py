"""Samplers: the order in which a dataset is read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch


class Sampler:
    """Base: indices of a dataset in some order."""

    def __init__(self, data_source: Any = None) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.data_source)


class SequenceSampler(Sampler):
    """In order."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))


class RandomSampler(Sampler):
    """In random order, or with replacement."""

    def __init__(
        self, data_source: Any, replacement: bool = False, num_samples: int | None = None, generator: Any = None
    ) -> None:
        super().__init__(data_source)
        self.replacement, self._num_samples, self.generator = replacement, num_samples, generator

    def __iter__(self) -> Iterator[int]:
        total = len(self.data_source)
        if self.generator is not None and not isinstance(self.generator, torch.Generator):
            yield from (next(self.generator) for _ in range(len(self)))
        elif self.replacement:
            yield from torch.randint(total, (len(self),), generator=self.generator).tolist()
        else:
            yield from torch.randperm(total, generator=self.generator).tolist()[: len(self)]

    def __len__(self) -> int:
        return len(self.data_source) if self._num_samples is None else self._num_samples


class SubsetRandomSampler(Sampler):
    """Some indices in random order."""

    def __init__(self, indices: Sequence[int]) -> None:
        if len(indices) == 0:
            raise ValueError("The length of `indices` in SubsetRandomSampler should be greater than 0.")
        super().__init__(indices)

    def __iter__(self) -> Iterator[int]:
        return iter([self.data_source[i] for i in torch.randperm(len(self.data_source)).tolist()])


class WeightedRandomSampler(Sampler):
    """Indices drawn by weight."""

    def __init__(self, weights: Any, num_samples: int, replacement: bool = True) -> None:
        super().__init__(None)
        self.weights = torch.as_tensor(np.asarray(weights), dtype=torch.float64)
        if not replacement and num_samples > len(self.weights):
            raise ValueError(f"num_samples {num_samples} exceeds {len(self.weights)} weights without replacement")
        self.num_samples, self.replacement = num_samples, replacement

    def __iter__(self) -> Iterator[int]:
        return iter(torch.multinomial(self.weights, self.num_samples, self.replacement).tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """Lists of `batch_size` indices."""

    def __init__(
        self,
        dataset: Any = None,
        sampler: Any = None,
        shuffle: bool = False,
        batch_size: int = 1,
        drop_last: bool = False,
    ) -> None:
        super().__init__(dataset)
        if (dataset is None) == (sampler is None):
            raise ValueError("BatchSampler takes a dataset or a sampler, one of them")
        if not isinstance(batch_size, int) or batch_size <= 0:
            raise ValueError(f"batch_size should be a positive integer, but got {batch_size}")
        self.sampler = sampler if sampler is not None else (RandomSampler if shuffle else SequenceSampler)(dataset)
        self.batch_size, self.drop_last, self.shuffle = batch_size, drop_last, shuffle

    def __iter__(self) -> Iterator[list[int]]:  # type: ignore[override]
        batch: list[int] = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        count = len(self.sampler)
        return count // self.batch_size if self.drop_last else math.ceil(count / self.batch_size)


class DistributedBatchSampler(BatchSampler):
    """Each process's share of the batches; the end is filled up from the beginning, so that all have as many.

    The order is that of numpy's RandomState of the epoch (`set_epoch`), as in Paddle.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
    ) -> None:
        from oarlock.paddle.distributed import get_rank, get_world_size

        super().__init__(dataset, None, False, batch_size, drop_last)
        self.dataset, self.shuffle = dataset, shuffle
        self.nranks = get_world_size() if num_replicas is None else num_replicas
        self.local_rank = get_rank() if rank is None else rank
        self.epoch = 0
        self.num_samples = math.ceil(len(dataset) / self.nranks)
        self.total_size = self.num_samples * self.nranks

    def set_epoch(self, epoch: int) -> None:
        """The order of an epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:  # type: ignore[override]
        indices = np.arange(len(self.dataset)).tolist()
        indices = (indices * math.ceil(self.total_size / len(indices)))[: self.total_size] if indices else []
        if self.shuffle:
            np.random.RandomState(self.epoch).shuffle(indices)
            self.epoch += 1
        mine = self._mine(indices)
        for start in range(0, len(mine), self.batch_size):
            batch = mine[start : start + self.batch_size]
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def _mine(self, indices: list[int]) -> list[int]:
        """Batches in turn: the ranks' batches lie side by side."""
        last = self.total_size % (self.batch_size * self.nranks)
        mine: list[int] = []
        for start in range(self.local_rank * self.batch_size, len(indices) - last, self.batch_size * self.nranks):
            mine += indices[start : start + self.batch_size]
        rest = indices[len(indices) - last :]
        share = last // self.nranks
        return mine + rest[self.local_rank * share : (self.local_rank + 1) * share]

    def __len__(self) -> int:
        extra = 0 if self.drop_last else self.batch_size - 1
        return (self.num_samples + extra) // self.batch_size
