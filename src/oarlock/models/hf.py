"""Model folders in Hugging Face's form: config.json and model.safetensors, in shards with an index above a size.

Everything is checked before anything is allocated, and config.json is published last: a folder without it is not a
model. Nothing is ever unpickled.
"""

import json
import os
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from oarlock.models.config import DecoderConfig
from oarlock.models.decoder import Decoder

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_FLOAT_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_MAX_LISTED = 5


@dataclass(frozen=True)
class _Slot:
    """Where one tensor of the weight files belongs in a Decoder."""

    key: str
    expert: int | None
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _Stored:
    """One tensor of the weight files."""

    file: Path
    shape: tuple[int, ...]
    dtype: torch.dtype


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
    directory = Path(directory)
    config = read_config(directory)
    with torch.device("meta"):
        model = Decoder(config)
    slots = _slots(model)
    stored = _stored_tensors(directory)
    _drop_redundant(stored, config, directory)
    _check_tensors(slots, stored, directory)
    model.load_state_dict(_read(model, slots, stored, dtype, torch.device(device)), assign=True)
    return model.requires_grad_(True)


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
    fields = _read_json(file)
    try:
        return DecoderConfig.from_hf(fields)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _slots(model: Decoder) -> dict[str, _Slot]:
    """Name in the weight files → slot, for every tensor the files must hold."""
    slots: dict[str, _Slot] = {}
    for key, tensor in model.state_dict().items():
        shape = tuple(tensor.shape)
        for name, expert in _file_names(key, shape, model.config):
            if expert is not None:
                slots[name] = _Slot(key, expert, shape[1:])
            elif name.endswith("moe_statics.e_score_correction_bias"):  # ERNIE keeps a group dim of 1
                slots[name] = _Slot(key, None, (1, *shape))
            else:
                slots[name] = _Slot(key, None, shape)
    return slots


def _file_names(key: str, shape: tuple[int, ...], config: DecoderConfig) -> Iterator[tuple[str, int | None]]:
    """Names in the weight files of one of our tensors; expert stacks have one per expert, or are stored as they are."""
    name = key if key.startswith("lm_head.") else f"model.{key}"
    name = name.replace(".mlp.gate.", f".mlp.{config.family.router_name}.")
    stem, _, leaf = name.rpartition(".")
    if stem.endswith(".mlp.experts") and not config.family.clamped_experts:
        yield from ((f"{stem}.{expert}.{leaf}.weight", expert) for expert in range(shape[0]))
    elif leaf == "correction_bias":
        yield f"{stem.removesuffix('gate')}{config.family.selection_bias_name}", None
    else:
        yield name, None


def _stored_tensors(directory: Path) -> dict[str, _Stored]:
    """What the folder's weight files hold, from their headers alone."""
    stored: dict[str, _Stored] = {}
    for file in _weight_files(directory):
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (not a dict)
                    header = tensors.get_slice(name)
                    if header.get_dtype() not in _FLOAT_DTYPES:
                        raise ValueError(
                            f"{file}: {name} has dtype {header.get_dtype()}; supported: {', '.join(_FLOAT_DTYPES)}"
                        )
                    if name in stored:
                        raise ValueError(f"{name} is in two files: {stored[name].file} and {file.name}")
                    stored[name] = _Stored(file, tuple(header.get_shape()), _FLOAT_DTYPES[header.get_dtype()])
        except SafetensorError as error:
            raise ValueError(f"{file} is not a readable safetensors file: {error}") from error
    return stored


def _weight_files(directory: Path) -> list[Path]:
    index = directory / INDEX
    if index.is_file():
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ValueError(f"{index} has no weight_map")
        files = sorted(set(weight_map.values()))
        for file in files:
            if Path(file).name != file:
                raise ValueError(f"{index} names {file!r}; shards must lie beside the index")
            if not (directory / file).is_file():
                lost = sum(name == file for name in weight_map.values())
                raise FileNotFoundError(f"{directory / file} is missing; {INDEX} expects {lost} tensors in it")
        return [directory / file for file in files]
    if (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS]
    pickled = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in directory.glob(pattern))
    hint = f"; {', '.join(pickled)} would have to be unpickled, which Oarlock never does" if pickled else ""
    raise FileNotFoundError(f"{directory} has neither {WEIGHTS} nor {INDEX}{hint}")


def _drop_redundant(stored: dict[str, _Stored], config: DecoderConfig, directory: Path) -> None:
    """Forget tensors that a model may carry along without using them."""
    for name in [name for name in stored if name.endswith("rotary_emb.inv_freq")]:
        del stored[name]  # old files hold RoPE's frequencies, which follow from the configuration
    ignored = tuple(p.format(num_layers=config.num_hidden_layers) for p in config.family.ignored_weights)
    if skipped := [name for name in stored if name.startswith(ignored)]:
        warnings.warn(f"{len(skipped)} tensors of {directory} are left out, e.g. {skipped[0]}", stacklevel=3)
        for name in skipped:
            del stored[name]
    head, embedding = stored.get("lm_head.weight"), stored.get("model.embed_tokens.weight")
    if config.tie_word_embeddings and head and embedding:
        if not torch.equal(_tensor(head, "lm_head.weight"), _tensor(embedding, "model.embed_tokens.weight")):
            raise ValueError(
                f"{head.file}: lm_head.weight differs from model.embed_tokens.weight although "
                "config.json says tie_word_embeddings = true; set it to false"
            )
        del stored["lm_head.weight"]


def _check_tensors(slots: dict[str, _Slot], stored: dict[str, _Stored], directory: Path) -> None:
    problems = [f"missing {name} {list(slot.shape)}" for name, slot in slots.items() if name not in stored]
    for name, tensor in stored.items():
        if name not in slots:
            problems.append(f"unexpected {name} {list(tensor.shape)} in {tensor.file.name}")
        elif tensor.shape != slots[name].shape:
            problems.append(
                f"{name} in {tensor.file.name} has shape {list(tensor.shape)}; {CONFIG} asks for "
                f"{list(slots[name].shape)}"
            )
    if problems:
        more = [f"... and {len(problems) - _MAX_LISTED} more"] if len(problems) > _MAX_LISTED else []
        listed = "\n  ".join(problems[:_MAX_LISTED] + more)
        raise ValueError(f"the weights of {directory} do not fit its {CONFIG}:\n  {listed}")


def _read(
    model: Decoder,
    slots: dict[str, _Slot],
    stored: dict[str, _Stored],
    dtype: torch.dtype | None,
    device: torch.device,
) -> dict[str, Tensor]:
    """State dict of the Decoder, in fresh memory (never a view of the mapped file)."""
    shapes = {key: tensor.shape for key, tensor in model.state_dict().items()}
    state: dict[str, Tensor] = {}
    for file in sorted({tensor.file for tensor in stored.values()}):
        with safe_open(file, framework="pt") as tensors:
            for name in [name for name, tensor in stored.items() if tensor.file == file]:
                source, slot = tensors.get_tensor(name), slots[name]
                wanted = torch.float32 if slot.key.endswith("correction_bias") else dtype or source.dtype
                if slot.key not in state:
                    state[slot.key] = torch.empty(shapes[slot.key], dtype=wanted, device=device)
                target = state[slot.key]
                if target.dtype != wanted:
                    raise ValueError(f"{name} in {file} is {wanted} but other experts are {target.dtype}; give a dtype")
                target = target if slot.expert is None else target[slot.expert]
                target.copy_(source.view(target.shape))
    return state


def _tensor(stored: _Stored, name: str) -> Tensor:
    with safe_open(stored.file, framework="pt") as tensors:
        return tensors.get_tensor(name)


def _read_json(path: Path) -> dict:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return content


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
    shards = _split(_named_tensors(model), max_shard_size)
    names = [WEIGHTS] if len(shards) == 1 else [_shard_name(i, len(shards)) for i in range(len(shards))]
    directory.mkdir(parents=True, exist_ok=True)
    for name, shard in zip(names, shards, strict=True):
        save_file(
            {key: tensor.detach().to("cpu").contiguous() for key, tensor in shard.items()},
            _draft(directory, name),
            metadata={"format": "pt"},
        )
        _flush(_draft(directory, name))
    if len(shards) > 1:
        weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        total = sum(tensor.nbytes for shard in shards for tensor in shard.values())
        _write_json({"metadata": {"total_size": total}, "weight_map": weight_map}, _draft(directory, INDEX))
        names.append(INDEX)
    _write_json(config, _draft(directory, CONFIG))
    (directory / CONFIG).unlink(missing_ok=True)
    for name in names:
        shutil.copymode(_draft(directory, CONFIG), _draft(directory, name))  # safetensors lets only the owner read
        _draft(directory, name).replace(directory / name)
    for stale in {*directory.glob("model-*-of-*.safetensors"), directory / WEIGHTS, directory / INDEX}:
        if stale.name not in names:
            stale.unlink(missing_ok=True)
    _draft(directory, CONFIG).replace(directory / CONFIG)


def _named_tensors(model: Decoder) -> dict[str, Tensor]:
    """Name in the weight files → tensor; experts are views of their stack."""
    state = model.state_dict()
    tensors = {}
    for name, slot in _slots(model).items():
        tensor = state[slot.key]
        tensors[name] = tensor.view(slot.shape) if slot.expert is None else tensor[slot.expert]
    return tensors


def _split(tensors: dict[str, Tensor], max_bytes: int) -> list[dict[str, Tensor]]:
    """Consecutive parts of at most `max_bytes`, or of one tensor; at least one part."""
    parts: list[dict[str, Tensor]] = [{}]
    free = max_bytes
    for name, tensor in tensors.items():
        if parts[-1] and tensor.nbytes > free:
            parts.append({})
            free = max_bytes
        parts[-1][name] = tensor
        free -= tensor.nbytes
    return parts


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
