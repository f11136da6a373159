"""What is kept of a step whose loss or gradient is not finite, so that it can be looked into."""

import json
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import save_file
from torch import nn

from oarlock.train.data import Batch


class NonFiniteLossError(ValueError):
    """The loss or the gradient norm is NaN or infinite; the message says where the step was dumped."""


def dump_step(folder: Path, step: int, loss: float, norm: float, model: nn.Module, batches: Sequence[Batch]) -> None:
    """Write `batch.safetensors` (inputs and targets of each micro-batch) and `facts.json` into `folder`.

    Args:
        folder: created where absent.
        step: the step that failed.
        loss: nats per token.
        norm: of all gradients, before clipping.
        model: its gradients are those of the step, its weights those before it.
        batches: on the CPU.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"{i}.{name}": getattr(b, name) for i, b in enumerate(batches) for name in ("input_ids", "targets")}
    save_file(tensors, folder / "batch.safetensors")
    named = dict(model.named_parameters())
    facts = {
        "step": step,
        "loss": repr(loss),
        "grad_norm": repr(norm),
        "non_finite_gradients": [n for n, p in named.items() if p.grad is not None and not p.grad.isfinite().all()],
        "non_finite_weights": [n for n, p in named.items() if not p.isfinite().all()],
    }
    (folder / "facts.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
