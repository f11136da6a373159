"""What is kept of a step whose loss or gradient is not finite, so that it can be looked into."""

import json
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import save_file
from torch import nn

from oarlock.train.data import Batch


class NonFiniteLossError(ValueError):
    """The loss or the gradient norm is NaN or infinite; the message says where the step was dumped."""


def dump_facts(folder: Path, step: int, loss: float, norm: float, model: nn.Module) -> None:
    """Write `facts.json` into `folder`, which is created: loss, norm, and the names of what is not finite.

    Args:
        folder: of the dump.
        step: the step that failed.
        loss: nats per token.
        norm: of all gradients, before clipping.
        model: its gradients are those of the step, its weights those before it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    named = dict(model.named_parameters())
    facts = {
        "step": step,
        "loss": repr(loss),
        "grad_norm": repr(norm),
        "non_finite_gradients": [n for n, p in named.items() if p.grad is not None and not p.grad.isfinite().all()],
        "non_finite_weights": [n for n, p in named.items() if not p.isfinite().all()],
    }
    (folder / "facts.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")


def dump_batches(folder: Path, batches: Sequence[Batch], rank: int = 0, num_ranks: int = 1) -> None:
    """Write the micro-batches of one rank as `batch.safetensors`, or `batch-rank-R.safetensors` of several ranks."""
    names = ("input_ids", "targets", "position_ids")
    tensors = {f"{i}.{name}": getattr(batch, name) for i, batch in enumerate(batches) for name in names}
    if tensors:
        save_file(tensors, folder / ("batch.safetensors" if num_ranks == 1 else f"batch-rank-{rank}.safetensors"))
