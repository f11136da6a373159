"""Log-probabilities of all answers under the weights that a run starts from: computed once, kept by content."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from oarlock.attention import ColumnMask
from oarlock.digest import digest64
from oarlock.models import Decoder
from oarlock.parallel import Mesh
from oarlock.train.config import TrainConfig
from oarlock.train.data import EvaluationLoader
from oarlock.train.data.pair_file import PairBatch
from oarlock.train.tasks.task import TaskData

Measure = Callable[[Decoder, PairBatch, ColumnMask], Tensor]
_SPLITS = ("train", "validation")


def reference_log_probs(
    config: TrainConfig, model: Decoder, data: TaskData, measure: Measure, mesh: Mesh, device: torch.device
) -> tuple[Tensor, Tensor]:
    """What `measure` gives for every pair under the present weights; all ranks call it.

    Each rank computes its share, batch by batch, in the precision that the trained model is later compared in: as
    configured for the pairs to train on, float32 for those held out. The result is a file in the cache named by a hash
    of weights, data and precision, which a resumed run finds again.

    Returns:
        float64 [D, 2] of the pairs to train on, and the same of those held out, on the CPU.
    """
    path = Path(config.data.cache).expanduser() / f"{_key(config, model, data)}.reference.safetensors"
    found = mesh.first_rank_first(lambda: _read(path, data))
    (num_found,) = mesh.sum_scalars([found is not None])
    (num_ranks,) = mesh.sum_scalars([1])
    if found is None or num_found < num_ranks:
        found = {split: _compute(config, model, data, split, measure, mesh, device) for split in _SPLITS}
        made = found
        mesh.first_rank_only(lambda: _write(path, made))
    return found["train"], found["validation"]


def _key(config: TrainConfig, model: Decoder, data: TaskData) -> str:
    total = hashlib.blake2b(f"{data.directory.name} {config.train.dtype};".encode(), digest_size=16)
    for name, tensor in model.state_dict().items():
        total.update(f"{name} {digest64(tensor)};".encode())
    return total.hexdigest()


def _read(path: Path, data: TaskData) -> dict[str, Tensor] | None:
    """The file's content; None if there is none, or if it is damaged: then it is computed again."""
    try:
        found = load_file(path)
    except (OSError, SafetensorError):
        return None
    sizes = {"train": data.train.num_documents, "validation": data.validation.num_documents}
    return found if {name: len(tensor) for name, tensor in found.items()} == sizes else None


def _write(path: Path, values: dict[str, Tensor]) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        partial = Path(folder) / path.name
        save_file(values, partial)
        os.replace(partial, path)


@torch.no_grad()
def _compute(
    config: TrainConfig,
    model: Decoder,
    data: TaskData,
    split: str,
    measure: Measure,
    mesh: Mesh,
    device: torch.device,
) -> Tensor:
    pairs = data.train if split == "train" else data.validation
    place = (mesh.rank("data"), mesh.size("data"), mesh.group("context") if mesh.size("context") > 1 else None)
    batches = EvaluationLoader(pairs, config.data.sequence_length, config.train.batch_size, *place)
    values = torch.zeros(pairs.num_documents, 2, dtype=torch.float64)
    was_training = model.training
    model.eval()
    half = split == "train" and config.train.dtype == "bf16"
    for batch in batches:
        assert isinstance(batch, PairBatch)
        batch = batch.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            measured = measure(model, batch, batch.mask(device))
        if mesh.rank("context") == 0:  # the others have the same
            values[batch.pairs.cpu()] = measured.cpu()
    model.train(was_training)
    return torch.tensor(mesh.sum_scalars(values.flatten().tolist()), dtype=torch.float64).view(-1, 2)
