"""Opening stored tensors of any format that is known here."""

from os import PathLike
from pathlib import Path

from oarlock.checkpoint.dcp import METADATA, open_dcp
from oarlock.checkpoint.gguf import is_gguf, open_gguf
from oarlock.checkpoint.huggingface import open_safetensors
from oarlock.checkpoint.manifest import MANIFEST_NAME
from oarlock.checkpoint.paddle import flex_metadata, is_pickle, open_flex_checkpoint, open_state_file, state_files
from oarlock.checkpoint.reader import load_checkpoint
from oarlock.checkpoint.source import TensorSource


def open_tensors(path: str | PathLike[str], group: str = "model") -> TensorSource:
    """The tensors of a checkpoint, a directory of torch DCP, a Hugging Face folder, a safetensors, GGUF or Paddle file.

    Args:
        path: a checkpoint's directory (`oarlock.json`), one that torch.distributed.checkpoint saved (`.metadata`), a
            folder of .safetensors files, one such file, a GGUF file (its quantised tensors become float32; see
            open_gguf), a file of paddle.save or a folder of .pdparams, or a directory of Paddle's FlexCheckpoint
            (`N.metadata`).
        group: which group of a checkpoint; the others have no groups.

    Raises:
        CheckpointError: none of these, or damaged; what is read of a checkpoint is verified when it is read.
    """
    path = Path(path)
    if (path / MANIFEST_NAME).is_file():
        return load_checkpoint(path, verify="read").source(group)
    if (path / METADATA).is_file():
        return open_dcp(path)
    if flex_metadata(path) is not None:
        return open_flex_checkpoint(path)
    if (path.is_file() and is_pickle(path)) or state_files(path):
        return open_state_file(path)
    if is_gguf(path):
        return open_gguf(path)
    return open_safetensors(path)
