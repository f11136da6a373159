"""Datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils.data as data
from torch import Tensor

Dataset = data.Dataset
IterableDataset = data.IterableDataset
ConcatDataset = data.ConcatDataset
ChainDataset = data.ChainDataset
Subset = data.Subset


class TensorDataset(data.Dataset[tuple[Tensor, ...]]):
    """Rows of several tensors of one length.

    Raises:
        ValueError: lengths differ.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        if len({len(tensor) for tensor in tensors}) > 1:
            raise ValueError(f"tensors not have same shape of the 1st dimension: {[len(t) for t in tensors]}")
        self.tensors = list(tensors)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])


class ComposeDataset(data.Dataset[tuple[Any, ...]]):
    """The fields of several datasets of one length, side by side."""

    def __init__(self, datasets: Sequence[Any]) -> None:
        if not datasets or len({len(each) for each in datasets}) > 1:
            raise ValueError(f"ComposeDataset needs datasets of one length, got {[len(each) for each in datasets]}")
        self.datasets = list(datasets)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        fields: list[Any] = []
        for each in self.datasets:
            sample = each[index]
            fields += sample if isinstance(sample, (list, tuple)) else [sample]
        return tuple(fields)

    def __len__(self) -> int:
        return len(self.datasets[0])


def random_split(dataset: Any, lengths: Sequence[float], generator: Any = None) -> list[Any]:
    """Parts at random, of given lengths or shares."""
    return list(data.random_split(dataset, lengths, generator or torch.default_generator))
