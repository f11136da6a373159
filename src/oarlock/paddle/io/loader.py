"""`DataLoader`: batches of a dataset, also from worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.utils.data as data
from torch import Tensor

from oarlock.paddle.io.samplers import BatchSampler

get_worker_info = data.get_worker_info


def default_collate_fn(batch: Any) -> Any:
    """Samples as tensors with a new first dimension; a sample that is a list or tuple gives a list."""
    sample = batch[0]
    if isinstance(sample, Tensor):
        return torch.stack(list(batch))
    if isinstance(sample, (np.ndarray, np.generic)):
        return torch.from_numpy(np.stack(list(batch)))
    if isinstance(sample, (bool, int, float, complex)):
        return torch.from_numpy(np.array(batch))
    if isinstance(sample, (str, bytes)):
        return list(batch)
    if isinstance(sample, Mapping):
        return {key: default_collate_fn([each[key] for each in batch]) for key in sample}
    if isinstance(sample, (list, tuple)):
        if len({len(each) for each in batch}) > 1:
            raise RuntimeError("fields number not same among a batch")
        return [default_collate_fn(list(fields)) for fields in zip(*batch, strict=True)]
    raise TypeError(f"batch data con only contains: tensor, numpy.ndarray, dict, list, number, but got {type(sample)}")


class DataLoader:
    """Iterates over a dataset in batches.

    Args:
        dataset: with `__getitem__` and `__len__`, or an IterableDataset.
        batch_sampler: lists of indices; replaces `batch_size`, `shuffle` and `drop_last`.
        batch_size: samples of a batch; None gives samples as they are.
        collate_fn: makes a batch of a list of samples.
        num_workers: processes that read ahead.
        worker_init_fn: called with the number of each worker when it starts.
        feed_list, places, return_list, use_buffer_reader, reader_buffer_size, use_shared_memory: taken, and not needed.
    """

    def __init__(
        self,
        dataset: Any,
        feed_list: Any = None,
        places: Any = None,
        return_list: bool = True,
        batch_sampler: Any = None,
        batch_size: int | None = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        collate_fn: Callable[[Any], Any] | None = None,
        num_workers: int = 0,
        use_buffer_reader: bool = True,
        reader_buffer_size: int = 2,
        prefetch_factor: int = 2,
        use_shared_memory: bool = True,
        timeout: int = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        persistent_workers: bool = False,
    ) -> None:
        self.dataset, self.return_list = dataset, return_list
        iterable = isinstance(dataset, data.IterableDataset)
        if batch_sampler is None and batch_size is not None and not iterable:
            batch_sampler = BatchSampler(dataset, shuffle=shuffle, batch_size=batch_size, drop_last=drop_last)
        self.batch_sampler, self.batch_size = batch_sampler, batch_size
        options: dict[str, Any] = {
            "num_workers": num_workers,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "persistent_workers": persistent_workers,
            "prefetch_factor": prefetch_factor if num_workers else None,
        }
        if batch_sampler is not None:
            options |= {"batch_sampler": batch_sampler, "collate_fn": _InTensors(collate_fn or default_collate_fn)}
        elif batch_size is None:
            options |= {"batch_size": None, "collate_fn": _InTensors(collate_fn)}
        else:
            options |= {
                "batch_size": batch_size,
                "drop_last": drop_last,
                "collate_fn": _InTensors(collate_fn or default_collate_fn),
            }
        self._loader = data.DataLoader(dataset, **options)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)

    def __call__(self) -> Iterator[Any]:
        """An iterator, too."""
        return iter(self)


class _InTensors:
    """What a collation gives, with tensors in place of arrays."""

    def __init__(self, collate: Callable[[Any], Any] | None) -> None:
        self.collate = collate

    def __call__(self, samples: Any) -> Any:
        return _in_tensors(samples if self.collate is None else self.collate(samples))


def _in_tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return torch.from_numpy(value)
    if isinstance(value, dict):
        return {key: _in_tensors(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_in_tensors(each) for each in value]
    if type(value) is tuple:
        return tuple(map(_in_tensors, value))
    return value
