"""Bits per byte of held-out text: a measure of a language model that does not depend on its vocabulary."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from oarlock.attention import ColumnMask
from oarlock.models import Decoder
from oarlock.ops import linear_cross_entropy
from oarlock.parallel import Mesh
from oarlock.train.data import Batch


@dataclass(frozen=True)
class Evaluation:
    """Losses over a whole validation set."""

    loss: float
    """Nats per token."""
    bits_per_byte: float
    """Sum of nats / (ln 2 x UTF-8 bytes of the text); the documents' end markers count as nats, not as bytes."""
    num_tokens: int


def batch_mask(batch: Batch, device: torch.device) -> ColumnMask:
    """Which keys each token of a batch sees."""
    return batch.mask(device)


def summed_loss(model: Decoder, batch: Batch, mask: ColumnMask) -> Tensor:
    """Sum over the batch's targets of -log p(target), in nats; the logits never exist as a whole."""
    hidden = model(batch.input_ids, position_ids=batch.position_ids, mask=mask, plan=batch.plan)
    return linear_cross_entropy(hidden.flatten(0, 1), model.output_weight, batch.targets.flatten(), reduction="sum")


@torch.no_grad()
def evaluate(model: Decoder, batches: Iterable[Batch], mesh: Mesh, device: torch.device) -> Evaluation:
    """Loss over all targets of all ranks' batches.

    Raises:
        ValueError: there is no target to predict.
    """
    was_training = model.training
    model.eval()
    nats, num_tokens, num_bytes = 0.0, 0, 0
    for batch in batches:
        batch = batch.to(device)
        nats += summed_loss(model, batch, batch_mask(batch, device)).item()
        num_tokens += batch.num_targets
        num_bytes += batch.num_target_bytes
    model.train(was_training)
    nats, total_tokens, total_bytes = mesh.sum_scalars([nats, num_tokens, num_bytes])
    if total_tokens == 0 or total_bytes == 0:
        raise ValueError("the validation set has no text to predict")
    return Evaluation(nats / total_tokens, nats / (math.log(2) * total_bytes), int(total_tokens))
