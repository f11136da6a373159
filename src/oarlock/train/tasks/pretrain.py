"""Pretraining: predict every token of documents."""

from collections.abc import Iterable

import torch
from torch import Tensor

from oarlock.attention import ColumnMask
from oarlock.models import Decoder
from oarlock.parallel import Mesh
from oarlock.train.build import prepare_data
from oarlock.train.data import Batch
from oarlock.train.evaluate import evaluate, summed_loss
from oarlock.train.tasks.task import Evaluation, Task, TaskData


class Pretrain(Task):
    """Loss: the mean of -log p over all targets; measure: bits per byte of held-out text."""

    def prepare(self) -> TaskData:
        return prepare_data(self.config.data, self.config.model)

    def loss(self, model: Decoder, batch: Batch, mask: ColumnMask) -> tuple[Tensor, list[float]]:
        return summed_loss(model, batch, mask), []

    def evaluate(self, model: Decoder, batches: Iterable[Batch], mesh: Mesh, device: torch.device) -> Evaluation:
        result = evaluate(model, batches, mesh, device)
        return Evaluation(result.loss, result.num_tokens, {"bits_per_byte": result.bits_per_byte})
