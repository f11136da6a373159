"""Opening stored tensors of any format that is known here."""

from os import PathLike
from pathlib import Path

from oarlock.checkpoint.dcp import METADATA, open_dcp
from oarlock.checkpoint.huggingface import open_safetensors
from oarlock.checkpoint.manifest import MANIFEST_NAME
from oarlock.checkpoint.reader import load_checkpoint
from oarlock.checkpoint.source import TensorSource


def open_tensors(path: str | PathLike[str], group: str = "model") -> TensorSource:
    """The tensors of a checkpoint, of a directory of torch DCP, of a Hugging Face folder, or of a safetensors file.

    Args:
        path: a checkpoint's directory (`oarlock.json`), one that torch.distributed.checkpoint saved (`.metadata`), a
            folder of .safetensors files, or one such file.
        group: which group of a checkpoint; the others have no groups.

    Raises:
        CheckpointError: none of these, or damaged; what is read of a checkpoint is verified when it is read.
    """
    path = Path(path)
    if (path / MANIFEST_NAME).is_file():
        return load_checkpoint(path, verify="read").source(group)
    if (path / METADATA).is_file():
        return open_dcp(path)
    return open_safetensors(path)
