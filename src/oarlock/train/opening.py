"""What a run says of itself before its first step."""

from collections.abc import Iterator, Sequence

import torch

from oarlock.models import Decoder
from oarlock.train.data import PackedLoader
from oarlock.train.tasks.task import TaskData
from oarlock.train.units import format_count


def opening_notes(
    model: Decoder,
    data: TaskData,
    loader: PackedLoader,
    sequence_length: int,
    task_notes: Sequence[str],
    device: torch.device,
    peak: float,
) -> Iterator[str]:
    """Lines about the model, its data, the density of their mask, and the machine.

    Args:
        model: what is trained.
        data: what it is trained on.
        loader: of that data.
        sequence_length: S.
        task_notes: what the task has to say of the data.
        device: where the model is.
        peak: rate of a large matmul there, in FLOP/s.
    """
    packing, length = loader.packing, sequence_length
    within = [f", {packing.mean_visible_within(w) / length:.3f} within {w} keys" for w in model.config.windows]
    yield f"model     {model.config.model_type}, {format_count(model.num_parameters())} parameters, on {device}"
    yield f"data      {format_count(data.train.num_targets)} tokens, {packing.report}"
    for note in task_notes:
        yield f"          {note}"
    yield f"mask      density {packing.mean_visible / length:.3f} of S x S" + "".join(within)
    threads = torch.get_num_threads()
    yield f"machine   matmul peak {peak / 1e9:.0f} GFLOP/s, {threads} thread{'s' if threads > 1 else ''}"
