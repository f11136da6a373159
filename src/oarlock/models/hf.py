"""Model folders in Hugging Face's form: config.json and model.safetensors, in shards with an index above a size.

Everything is checked before anything is allocated, and config.json is published last: a folder without it is not a
model. Names and layouts of the weight files are programs in the AOA language (program.py).
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from oarlock.checkpoint import CheckpointError, LoadReport, Shard, TensorSource
from oarlock.checkpoint.agreement import all_or_none
from oarlock.checkpoint.aoa import Program, Relation, materialize
from oarlock.checkpoint.aoa.execute import ReadBox
from oarlock.checkpoint.manifest import ADVICE
from oarlock.checkpoint.tensor_file import lay_out
from oarlock.digest import tensor_bytes
from oarlock.models.config import DecoderConfig
from oarlock.models.decoder import Decoder
from oarlock.models.weights import CONFIG, INDEX, WEIGHTS, export_program, open_weights, read_json
from oarlock.ranks import Ranks

T = TypeVar("T")


# ---- loading ---------------------------------------------------------------------------------------------------------


def load(
    directory: str | os.PathLike[str], *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> Decoder:
    """A Decoder from a Hugging Face folder (config.json, model.safetensors or its shards with an index).

    Args:
        directory: the folder.
        dtype: of the parameters; None keeps what the files hold. Router selection biases stay float32.
        device: where the parameters go.

    Returns:
        The model, in training mode.

    Raises:
        FileNotFoundError: no such folder, config.json, weights, or a shard named by the index.
        ValueError: a configuration that is not supported; missing, unexpected or mis-shaped tensors; a damaged file.
    """
    model = _outline(directory)
    source = _sound(lambda: open_weights(Path(directory), model, dtype))
    model.load_state_dict(_sound(lambda: source.read(device=device)), assign=True)
    return model.requires_grad_(True)


def load_sharded(
    directory: str | os.PathLike[str],
    destinations: Mapping[str, Tensor | Shard],
    *,
    process_group: dist.ProcessGroup | None = None,
) -> LoadReport:
    """Fill tensors of a distributed Decoder from a Hugging Face folder; each rank reads only what its own ones need.

    All ranks call it. Whatever is wrong with the folder is found before anything is written; if one rank fails, all
    raise.

    Args:
        directory: the folder.
        destinations: name as in `Decoder.state_dict()` -> tensor, DTensor or Shard, of any dtype and device, written in
            place; it may lack tensors (those of other pipeline stages).
        process_group: the processes that load together; None = all of them, or this one.

    Returns:
        What was loaded; `unexpected` names the model's tensors that have no destination.

    Raises:
        ValueError: a configuration that is not supported; missing, unexpected or mis-shaped tensors in the files.
        CheckpointError: a damaged file; a destination of another name or shape; or another rank failed.
    """
    opened: list[TensorSource] = []

    def check() -> None:
        opened.append(open_weights(Path(directory), _outline(directory)))

    all_or_none(Ranks(process_group), check, f"loading {directory} failed, nothing was changed")
    return opened[0].load(destinations, strict="destination", cast=True, process_group=process_group)


def read_config(path: str | os.PathLike[str]) -> DecoderConfig:
    """The DecoderConfig of a Hugging Face folder, or of a config.json of any name.

    Raises:
        FileNotFoundError: no such file, no such folder, or no config.json in it.
        ValueError: damaged JSON or an unsupported configuration, naming the file.
    """
    is_file = Path(path).suffix == ".json"
    file = Path(path) if is_file else Path(path) / CONFIG
    if not file.is_file():
        missing = f"no model configuration {path}" if is_file else f"{path} is not a model folder: it has no {CONFIG}"
        raise FileNotFoundError(missing)
    fields = read_json(file)
    try:
        return DecoderConfig.from_hf(fields)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _outline(directory: str | os.PathLike[str]) -> Decoder:
    """The model of a folder without memory."""
    with torch.device("meta"):
        return Decoder(read_config(directory))


def _sound(read: Callable[[], T]) -> T:
    """What `read` returns; a damaged file is a ValueError that says so."""
    try:
        return read()
    except CheckpointError as error:
        raise ValueError(str(error).replace(ADVICE, "fetch it again")) from error


# ---- saving ----------------------------------------------------------------------------------------------------------


def save(model: Decoder, directory: str | os.PathLike[str], *, max_shard_size: int = 4 * 10**9) -> None:
    """Write config.json and the weights so that transformers and `load` read them.

    A model already in the folder is replaced; other files (a tokenizer) stay. While the weights change hands the folder
    has no config.json, so nobody reads a mixture.

    Args:
        model: the Decoder, on any device.
        directory: created where absent.
        max_shard_size: bytes per weight file; beyond it the weights are split and an index is written. A tensor that
            is larger gets a file of its own.

    Raises:
        ValueError: max_shard_size below 1, or a configuration that config.json cannot express.
    """
    if max_shard_size < 1:
        raise ValueError(f"max_shard_size must be at least 1 byte; got {max_shard_size}")
    directory = Path(directory)
    config = model.config.to_hf() | {"torch_dtype": str(model.embed_tokens.weight.dtype).removeprefix("torch.")}
    state = model.state_dict()
    files = _split(_in_order(export_program(model), list(state)), max_shard_size)
    names = [WEIGHTS] if len(files) == 1 else [_shard_name(i, len(files)) for i in range(len(files))]
    directory.mkdir(parents=True, exist_ok=True)
    for name, relations in zip(names, files, strict=True):
        _write_weights(relations, state, _draft(directory, name))
    if len(files) > 1:
        weight_map = {key: name for name, relations in zip(names, files, strict=True) for key in relations}
        total = sum(_num_bytes(relation) for relations in files for relation in relations.values())
        _write_json({"metadata": {"total_size": total}, "weight_map": weight_map}, _draft(directory, INDEX))
        names.append(INDEX)
    _write_json(config, _draft(directory, CONFIG))
    (directory / CONFIG).unlink(missing_ok=True)
    for name in names:
        _draft(directory, name).replace(directory / name)
    for stale in {*directory.glob("model-*-of-*.safetensors"), directory / WEIGHTS, directory / INDEX}:
        if stale.name not in names:
            stale.unlink(missing_ok=True)
    _draft(directory, CONFIG).replace(directory / CONFIG)


def _in_order(program: Program, keys: list[str]) -> dict[str, Relation]:
    """The tensors of the weight files in the model's order, so that a layer lies in one file or two."""
    place = {key: index for index, key in enumerate(keys)}
    names = sorted(program.tensors, key=lambda name: place[program.sources(name)[0]])
    return {name: program.tensors[name] for name in names}


def _split(relations: dict[str, Relation], max_bytes: int) -> list[dict[str, Relation]]:
    """Consecutive parts of at most `max_bytes`, or of one tensor; at least one part."""
    parts: list[dict[str, Relation]] = [{}]
    free = max_bytes
    for name, relation in relations.items():
        if parts[-1] and _num_bytes(relation) > free:
            parts.append({})
            free = max_bytes
        parts[-1][name] = relation
        free -= _num_bytes(relation)
    return parts


def _write_weights(relations: dict[str, Relation], state: Mapping[str, Tensor], path: Path) -> None:
    """One file, put together one tensor at a time."""

    def read(key: str, offset: tuple[int, ...], size: tuple[int, ...]) -> Tensor:
        return state[key][tuple(slice(start, start + length) for start, length in zip(offset, size, strict=True))]

    header, ordered = lay_out({name: (relation.dtype, relation.shape) for name, relation in relations.items()})
    with path.open("wb") as file:
        file.write(header)
        for name in ordered:
            file.write(tensor_bytes(_made(relations[name], read)).data)
    _flush(path)


def _made(relation: Relation, read: ReadBox) -> Tensor:
    """The tensor of a relation: a view where it is a box of one tensor of the model in the same order, else new."""
    first = relation.blocks[0]
    dims = [atom.source_dim for atom in first.atoms if atom.source_step == 1]
    is_box = len(relation.blocks) == 1 and not first.ops and len(dims) == len(first.atoms) and dims == sorted(set(dims))
    if is_box and isinstance(first.source, str):
        return read(first.source, *first.source_box()).reshape(relation.shape)
    return materialize(relation, read)


def _num_bytes(relation: Relation) -> int:
    return relation.num_elements * relation.dtype.itemsize


def _shard_name(index: int, total: int) -> str:
    return f"model-{index + 1:05d}-of-{total:05d}.safetensors"


def _draft(directory: Path, name: str) -> Path:
    return directory / f".{name}.draft"


def _write_json(content: dict, path: Path) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    _flush(path)


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
