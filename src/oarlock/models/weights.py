"""The weight files of a Hugging Face folder as a source of a Decoder's tensors.

Everything is checked from the files' headers, before anything is read or allocated. Nothing is ever unpickled.
"""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from oarlock.checkpoint import TensorSource
from oarlock.checkpoint.aoa import AOA, AOAError, Program, Relation, TensorSpec
from oarlock.checkpoint.derived import Derived
from oarlock.checkpoint.dtypes import SAFETENSORS_NAMES
from oarlock.checkpoint.huggingface import open_safetensors
from oarlock.checkpoint.stored import StoredTensor
from oarlock.models.config import DecoderConfig
from oarlock.models.decoder import Decoder
from oarlock.models.program import weights_program

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_FLOAT_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_MAX_LISTED = 5

_Stored = dict[str, StoredTensor]


def open_weights(directory: Path, model: Decoder, dtype: torch.dtype | None = None) -> TensorSource:
    """The tensors of a Decoder, made of what a folder's weight files hold.

    Args:
        directory: the folder.
        model: as its config.json says; on the meta device, for example.
        dtype: of all parameters; None = what the files hold. Router selection biases are float32.

    Raises:
        FileNotFoundError: no weights, or a shard named by the index is missing.
        ValueError: missing, unexpected or mis-shaped tensors, or an unusable index; CheckpointError: a damaged file.
    """
    source, config = _open(directory), model.config
    stored: _Stored = {name: tensor for name, tensor in source.tensors.items() if isinstance(tensor, StoredTensor)}
    _drop_redundant(stored, config, directory)
    relations = _compiled(stored, model, dtype)
    if relations is None:
        _explain(stored, export_program(model), directory, mixed=dtype is not None)
    place = {name: index for index, name in enumerate(stored)}  # files are read from the front to the back
    order = sorted(relations, key=lambda name: min(place[str(block.source)] for block in relations[name].blocks))
    return TensorSource(str(directory), {name: Derived(relations[name], stored) for name in order})


def export_program(model: Decoder) -> Program:
    """What every tensor of the weight files is made of."""
    specs = {name: TensorSpec.of(tensor) for name, tensor in model.state_dict().items()}
    return AOA(weights_program(model.config, "to_hf")).compile(specs)


def read_json(path: Path) -> dict:
    """A JSON object; ValueError naming the file if it is something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return content


def _open(directory: Path) -> TensorSource:
    """The index's files, or the one file; others that lie beside them (adapters, other formats) are no part of it."""
    index = directory / INDEX
    if index.is_file():
        _check_shards(index)
        return open_safetensors(index)
    if (directory / WEIGHTS).is_file():
        return open_safetensors(directory / WEIGHTS)
    pickled = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in directory.glob(pattern))
    hint = f"; {', '.join(pickled)} would have to be unpickled, which Oarlock never does" if pickled else ""
    raise FileNotFoundError(f"{directory} has neither {WEIGHTS} nor {INDEX}{hint}")


def _check_shards(index: Path) -> None:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ValueError(f"{index} has no weight_map")
    for file in sorted(set(weight_map.values())):
        if Path(file).name != file:
            raise ValueError(f"{index} names {file!r}; shards must lie beside the index")
        if not (index.parent / file).is_file():
            lost = sum(name == file for name in weight_map.values())
            raise FileNotFoundError(f"{index.parent / file} is missing; {INDEX} expects {lost} tensors in it")


def _drop_redundant(stored: _Stored, config: DecoderConfig, directory: Path) -> None:
    """Forget tensors that a model may carry along without using them."""
    for name in [name for name in stored if name.endswith("rotary_emb.inv_freq")]:
        del stored[name]  # old files hold RoPE's frequencies, which follow from the configuration
    ignored = tuple(p.format(num_layers=config.num_hidden_layers) for p in config.family.ignored_weights)
    if skipped := [name for name in stored if name.startswith(ignored)]:
        warnings.warn(f"{len(skipped)} tensors of {directory} are left out, e.g. {skipped[0]}", stacklevel=6)
        for name in skipped:
            del stored[name]
    head, embedding = stored.get("lm_head.weight"), stored.get("model.embed_tokens.weight")
    if config.tie_word_embeddings and head and embedding:
        if head.dtype != embedding.dtype or not torch.equal(_view(head), _view(embedding)):
            raise ValueError(
                f"{_file(head)}: lm_head.weight differs from model.embed_tokens.weight although "
                "config.json says tie_word_embeddings = true; set it to false"
            )
        del stored["lm_head.weight"]


def _compiled(stored: _Stored, model: Decoder, dtype: torch.dtype | None) -> Mapping[str, Relation] | None:
    """What every tensor of the model is made of; None unless the files hold what it needs, no more and no less."""
    specs = {name: TensorSpec(tensor.shape, tensor.dtype) for name, tensor in stored.items()}
    try:
        relations = AOA(weights_program(model.config, dtype=dtype)).compile(specs).tensors
    except AOAError:
        return None
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    fits = {name: relation.shape for name, relation in relations.items()} == shapes
    return relations if fits and all(tensor.dtype in _FLOAT_DTYPES for tensor in stored.values()) else None


def _explain(stored: _Stored, expected: Program, directory: Path, *, mixed: bool) -> NoReturn:
    """Name every tensor that keeps the files from fitting; `mixed` allows two dtypes in one stack of experts."""
    wanted = expected.tensors
    problems = [f"missing {name} {list(wanted[name].shape)}" for name in wanted if name not in stored]
    stacks: dict[str, torch.dtype] = {}
    for name, tensor in stored.items():
        if name not in wanted:
            problems.append(f"unexpected {name} {list(tensor.shape)} in {_file(tensor).name}")
            continue
        if tensor.shape != wanted[name].shape:
            shapes = f"has shape {list(tensor.shape)}; {CONFIG} asks for {list(wanted[name].shape)}"
            problems.append(f"{name} in {_file(tensor).name} {shapes}")
        if tensor.dtype not in _FLOAT_DTYPES:
            code, known = SAFETENSORS_NAMES[tensor.dtype], ", ".join(SAFETENSORS_NAMES[d] for d in _FLOAT_DTYPES)
            problems.append(f"{name} in {_file(tensor).name} has dtype {code}; supported: {known}")
            continue
        for stack in expected.sources(name):
            first = stacks.setdefault(stack, tensor.dtype)
            if first != tensor.dtype and not mixed:
                dtypes = f"is {tensor.dtype} but other experts are {first}; give a dtype"
                problems.append(f"{name} in {_file(tensor).name} {dtypes}")
    assert problems
    more = [f"... and {len(problems) - _MAX_LISTED} more"] if len(problems) > _MAX_LISTED else []
    listed = "\n  ".join(problems[:_MAX_LISTED] + more)
    raise ValueError(f"the weights of {directory} do not fit its {CONFIG}:\n  {listed}")


def _view(stored: StoredTensor) -> Tensor:
    [piece] = stored.pieces
    return piece.file.tensor(piece.name, stored.dtype, stored.shape)


def _file(stored: StoredTensor) -> Path:
    return stored.pieces[0].file.path
