"""The metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def accuracy(input: Tensor, label: Tensor, k: int = 1, correct: Any = None, total: Any = None) -> Tensor:
    """The share of rows whose label is among the `k` largest of the row.

    Args:
        input: [N, C].
        label: integers [N, 1] or [N].
        correct, total: tensors that get how many rows are right, and how many there are.

    Returns:
        float32 scalar.
    """
    hits = (input.topk(k, -1).indices == label.reshape(-1, 1)).any(-1)
    for given, value in ((correct, hits.sum()), (total, torch.tensor(len(hits)))):
        if isinstance(given, Tensor):
            given.copy_(value)
    return hits.float().mean()


class Metric(ABC):
    """Base: `compute` makes of outputs and labels, on the device, what `update` adds up; `accumulate` is the value."""

    @abstractmethod
    def reset(self) -> None:
        """Begin anew."""

    @abstractmethod
    def update(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch."""

    @abstractmethod
    def accumulate(self) -> Any:
        """The value of all batches since `reset`."""

    @abstractmethod
    def name(self) -> Any:
        """Its name, or one for each value."""

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """What `update` takes, of outputs and labels; they themselves by default."""
        return args


class Accuracy(Metric):
    """The share of rows whose label is among the largest `k`, for each `k` of `topk`."""

    def __init__(self, topk: Sequence[int] = (1,), name: str | None = None) -> None:
        self.topk = (topk,) if isinstance(topk, int) else tuple(topk)
        self.maxk = max(self.topk)
        self._name = name or "acc"
        self.reset()

    def compute(self, pred: Tensor, label: Tensor, *args: Any) -> Tensor:
        """Whether each of the `maxk` largest is the label: float32 [..., maxk].

        Args:
            pred: [..., C].
            label: integers [...] or [..., 1], or one-hot [..., C].
        """
        order = pred.argsort(-1, descending=True)[..., : self.maxk]
        if label.ndim == pred.ndim and label.shape[-1] != 1:
            label = label.argmax(-1, keepdim=True)
        elif label.ndim == pred.ndim - 1:
            label = label.unsqueeze(-1)
        return (order == label).float()

    def update(self, correct: Any, *args: Any) -> Any:
        """Add what `compute` gave; returns the accuracy of this batch, or a list of them."""
        hits = _array(correct)
        rows = int(np.prod(hits.shape[:-1]))
        found = []
        for number, k in enumerate(self.topk):
            right = float(hits[..., :k].sum())
            self.total[number] += right
            self.count[number] += rows
            found.append(right / rows)
        return found[0] if len(found) == 1 else found

    def reset(self) -> None:
        """Begin anew."""
        self.total, self.count = [0.0] * len(self.topk), [0] * len(self.topk)

    def accumulate(self) -> Any:
        """The accuracy, or a list of them."""
        found = [right / rows if rows else 0.0 for right, rows in zip(self.total, self.count, strict=True)]
        return found[0] if len(found) == 1 else found

    def name(self) -> list[str]:
        """`acc`, or `acc_top1`, `acc_top5`, ..."""
        return [self._name] if len(self.topk) == 1 else [f"{self._name}_top{k}" for k in self.topk]


class _Counts(Metric):
    """Of binary labels: how many were rightly found, wrongly found, missed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.tp = self.fp = self.fn = 0

    def update(self, preds: Any, labels: Any) -> None:
        """Add a batch: probabilities [N, 1] or [N], rounded to 0 or 1, and labels."""
        found = np.rint(_array(preds)).astype("int64").reshape(-1)
        true = _array(labels).astype("int64").reshape(-1)
        self.tp += int(((found == 1) & (true == 1)).sum())
        self.fp += int(((found == 1) & (true != 1)).sum())
        self.fn += int(((found != 1) & (true == 1)).sum())

    def name(self) -> str:
        """Its name."""
        return self._name


class Precision(_Counts):
    """Of those found, the share that is right."""

    def __init__(self, name: str = "precision") -> None:
        super().__init__(name)

    def accumulate(self) -> float:
        """tp / (tp + fp), 0 for none."""
        return self.tp / (self.tp + self.fp) if self.tp + self.fp else 0.0


class Recall(_Counts):
    """Of those that are there, the share that is found."""

    def __init__(self, name: str = "recall") -> None:
        super().__init__(name)

    def accumulate(self) -> float:
        """tp / (tp + fn), 0 for none."""
        return self.tp / (self.tp + self.fn) if self.tp + self.fn else 0.0


class Auc(Metric):
    """Area under the curve of true over false positives, from a histogram of probabilities, by trapezoids."""

    def __init__(
        self, curve: str = "ROC", num_thresholds: int = 4095, name: str = "auc", *args: Any, **kwargs: Any
    ) -> None:
        if curve != "ROC":
            raise ValueError(f"curve = {curve!r}: only 'ROC' is there")
        self._num_thresholds, self._name = num_thresholds, name
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self._positive, self._negative = (np.zeros(self._num_thresholds + 1) for _ in range(2))

    def update(self, preds: Any, labels: Any) -> None:
        """Add a batch: probabilities [N, 2] (of 0 and of 1) or [N, 1], and labels."""
        probability = _array(preds).reshape(len(_array(preds)), -1)[:, -1]
        true = _array(labels).reshape(-1).astype(bool)
        bins = (probability * self._num_thresholds).astype("int64")
        size = self._num_thresholds + 1
        self._positive += np.bincount(bins[true], minlength=size)
        self._negative += np.bincount(bins[~true], minlength=size)

    def accumulate(self) -> float:
        """The area, 0 where one kind of label is absent."""
        right, wrong = (np.concatenate([[0.0], each[::-1].cumsum()]) for each in (self._positive, self._negative))
        whole = right[-1] * wrong[-1]
        return float(np.sum(np.diff(wrong) * (right[1:] + right[:-1]) / 2) / whole) if whole else 0.0

    def name(self) -> str:
        """Its name."""
        return self._name


def _array(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
