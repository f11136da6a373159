"""What a run learns from and what it minimises. The loop is the same for all tasks."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from oarlock.attention import ColumnMask
from oarlock.models import Decoder
from oarlock.parallel import Mesh
from oarlock.train.config import TrainConfig
from oarlock.train.data import Batch, Packable


class TaskData(Protocol):
    """Tokenised examples on disk; `oarlock.train.data.PreparedData` is one."""

    @property
    def directory(self) -> Path:
        """Named by the content."""
        ...

    @property
    def train(self) -> Packable: ...

    @property
    def validation(self) -> Packable: ...

    @property
    def tokenizer_path(self) -> Path:
        """Folder with tokenizer.json and its companions."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_id(self) -> int | list[int]:
        """What the model learns to end a text with."""
        ...

    @property
    def bos_id(self) -> int: ...


@dataclass(frozen=True)
class Evaluation:
    """Means over a whole validation set."""

    loss: float
    """Per target or pair."""
    num_losses: int
    metrics: dict[str, float]
    """What else is recorded under its name, the measure that people look at first."""

    @property
    def bits_per_byte(self) -> float | None:
        """Where the task has it."""
        return self.metrics.get("bits_per_byte")

    def __str__(self) -> str:
        parts = [f"{value:.4f} {name.replace('_', ' ')}" for name, value in self.metrics.items()]
        return ", ".join([*parts, f"loss {self.loss:.4f}"])


class Task(ABC):
    """One way to train a decoder.

    Args:
        config: of the run.
    """

    metric_names: tuple[str, ...] = ()
    """What `loss` measures besides; means over all losses of a step are recorded under these names."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.notes: list[str] = []
        """What the person should know about the data, known after `prepare`."""

    @abstractmethod
    def prepare(self) -> TaskData:
        """Tokenise the data, or find it in the cache. The first rank does so before the others."""

    def start(self, model: Decoder, data: TaskData, mesh: Mesh, device: torch.device) -> None:  # noqa: B027
        """Called once on all ranks with the weights that the run starts from, also when it is resumed."""

    @abstractmethod
    def loss(self, model: Decoder, batch: Batch, mask: ColumnMask) -> tuple[Tensor, list[float]]:
        """Sum of the losses of a batch, to be divided by `batch.num_losses` of all batches, and sums of the metrics."""

    @abstractmethod
    def evaluate(self, model: Decoder, batches: Iterable[Batch], mesh: Mesh, device: torch.device) -> Evaluation:
        """Means over all ranks' batches."""
