"""Reading folders of safetensors in Hugging Face's form: one file, or several with an index, or several without."""

import json
from os import PathLike
from pathlib import Path

from oarlock.checkpoint.boxes import Box
from oarlock.checkpoint.dtypes import dtype_from_safetensors
from oarlock.checkpoint.manifest import MANIFEST_NAME, CheckpointError
from oarlock.checkpoint.mapped_file import MappedFile
from oarlock.checkpoint.near_miss import near_names
from oarlock.checkpoint.source import TensorSource
from oarlock.checkpoint.stored import StoredPiece, StoredTensor

INDEX_SUFFIX = ".safetensors.index.json"


def open_safetensors(path: str | PathLike[str]) -> TensorSource:
    """The tensors of a safetensors file, or of a folder of them.

    A folder with an index (`model.safetensors.index.json`) has the tensors of the index; without one, those of all its
    .safetensors files.

    Args:
        path: the file, the index or the folder.

    Raises:
        CheckpointError: there is none; a file is missing or malformed; index and files contradict each other; a tensor
            is in two files, or of a dtype that this torch does not have.
    """
    path = Path(path)
    if path.is_file() and path.name.endswith(INDEX_SUFFIX):
        return _indexed(path.parent, path)
    if path.is_file():
        return _source(path, [path], None)
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such file or folder")
    indices = sorted(path.glob(f"*{INDEX_SUFFIX}"))
    if len(indices) > 1:
        raise CheckpointError(f"{path} has several indices ({', '.join(p.name for p in indices)}); open one of them")
    if indices:
        return _indexed(path, indices[0])
    files = sorted(path.glob("*.safetensors"))
    if not files:
        found = sorted(m.parent for depth in ("*", "checkpoints/*") for m in path.glob(f"{depth}/{MANIFEST_NAME}"))
        hint = f"; did you mean the checkpoint {found[-1]}?" if found else ""
        raise CheckpointError(f"{path} has no .safetensors file{hint}")
    return _source(path, files, None)


def _indexed(folder: Path, index: Path) -> TensorSource:
    weight_map = read_index(index)
    return _source(folder, [folder / name for name in dict.fromkeys(weight_map.values())], weight_map)


def _source(path: Path, files: list[Path], weight_map: dict[str, str] | None) -> TensorSource:
    tensors: dict[str, StoredTensor] = {}
    home: dict[str, Path] = {}
    metadata: dict[str, str] = {}
    for file in files:
        mapped = MappedFile(file)
        for name, entry in mapped.header.items():
            if name == "__metadata__":
                if not isinstance(entry, dict):
                    raise CheckpointError(f"{file}: its metadata are malformed: {entry}")
                metadata.update(entry)
                continue
            if name in home:
                raise CheckpointError(f"tensor {name!r} is in two files, {home[name].name} and {file.name} of {path}")
            if weight_map is not None and weight_map.get(name, file.name) != file.name:
                raise CheckpointError(f"{file} holds tensor {name!r}, which the index expects in {weight_map[name]}")
            home[name] = file
            tensors[name] = _stored(mapped, name, entry)
    if weight_map is not None and (absent := [name for name in weight_map if name not in home]):
        near = near_names(absent[0], home)
        hint = f" (it has {near[0]!r})" if near else ""
        raise CheckpointError(f"{path / weight_map[absent[0]]} lacks tensor {absent[0]!r} of the index{hint}")
    return TensorSource(str(path), tensors, metadata=metadata)


def _stored(file: MappedFile, name: str, entry: object) -> StoredTensor:
    match entry:
        case {"dtype": str(code), "shape": list(shape)} if all(type(n) is int and n >= 0 for n in shape):
            dtype = dtype_from_safetensors(code)
            if dtype is None:
                raise CheckpointError(f"{file.path}: tensor {name!r} has dtype {code}, which this torch cannot hold")
            file.check(name, dtype, tuple(shape))
            box = Box.whole(shape)
            return StoredTensor(dtype, tuple(shape), (StoredPiece(file, name, box),))
    raise CheckpointError(f"{file.path}: the header's entry of tensor {name!r} is malformed: {entry}")


def read_index(path: Path) -> dict[str, str]:
    """Tensor -> file of an index, all of them in its folder.

    Raises:
        CheckpointError: not readable.
    """
    try:
        content = json.loads(path.read_bytes())
        weight_map = {str(name): str(file) for name, file in content["weight_map"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a readable index ({type(error).__name__}: {error})") from None
    for file in set(weight_map.values()):
        if "/" in file or "\0" in file or not file or file.startswith("."):
            raise CheckpointError(f"{path}: names the file {file!r}, which is not in its folder")
    return weight_map
