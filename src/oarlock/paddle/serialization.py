"""`save` and `load`: Paddle's own files, without running what is in them, and safetensors."""

from __future__ import annotations

import io
import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oarlock.checkpoint.paddle import load_state_file, save_state_file
from oarlock.paddle.declare import api


@api(out=False)
def save(obj: Any, path: Any, protocol: int = 4, **configs: Any) -> None:
    """Write tensors, and dicts and lists of them with numbers and texts between, as `paddle.load` reads them.

    The file has Paddle's format: real Paddle reads it, too. It appears by one rename, whole or not at all.

    Args:
        obj: state dicts of layers and optimizers, tensors, nested as wished.
        path: of the file; folders are made. Or a BytesIO.
        protocol: taken; the file is always one that all of Paddle's protocols read.
        configs: `safetensors=True` writes a flat dict of tensors as safetensors.

    Raises:
        TypeError: a value of another type.
    """
    if isinstance(path, io.BytesIO):
        with tempfile.TemporaryDirectory() as folder:
            save(obj, Path(folder) / "state", protocol, **configs)
            path.write((Path(folder) / "state").read_bytes())
        return
    target = Path(os.fspath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    if configs.get("safetensors"):
        from safetensors.torch import save_file

        tensors = _flat(obj)
        temporary = target.with_name(f".{target.name}.tmp-{secrets.token_hex(6)}")
        try:
            save_file(tensors, temporary)
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return
    save_state_file(target, _plain(obj, named=_has_array(obj)))


@api(out=False)
def load(path: Any, **configs: Any) -> Any:
    """Read what `save` wrote, here or with Paddle; nothing in the file is run.

    Args:
        path: of the file, or a BytesIO.
        configs: `safetensors=True` reads safetensors; `return_numpy=True` gives arrays.
    """
    if isinstance(path, io.BytesIO):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "state").write_bytes(path.read())
            return load(Path(folder) / "state", **configs)
    source = Path(os.fspath(path))
    if not source.exists():
        raise ValueError(f"The ``path``: {path} does not exist")
    if configs.get("safetensors"):
        from safetensors.torch import load_file

        found: Any = load_file(source)
    else:
        found = load_state_file(source)
    return _as_arrays(found) if configs.get("return_numpy") else found


def _flat(obj: Any) -> dict[str, Tensor]:
    """A dict of tensors for safetensors, each with memory of its own."""
    if not isinstance(obj, dict):
        raise TypeError(f"safetensors=True writes a dict of tensors, not {type(obj).__name__}")
    for name, value in obj.items():
        if not isinstance(value, (Tensor, np.ndarray)):
            raise TypeError(f"safetensors=True writes a dict of tensors; {name!r} is {type(value).__name__}")
    return {str(name): _plain(value).contiguous().clone() for name, value in obj.items()}


def _has_array(value: Any) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return isinstance(value, np.ndarray) or any(map(_has_array, inside))


def _plain(value: Any, named: bool = False) -> Any:
    """The value with plain tensors; `named` ones, as (name, tensor), where arrays of numpy are to stay such."""
    if isinstance(value, Tensor):
        plain = value.detach().as_subclass(Tensor)
        return (str(getattr(value, "name", "") or ""), plain) if named else plain
    if isinstance(value, np.ndarray):
        return value if named else torch.from_numpy(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _plain(each, named) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return (tuple if type(value) is tuple else list)(_plain(each, named) for each in value)
    return value


def _as_arrays(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy()
    if isinstance(value, dict):
        return {key: _as_arrays(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_as_arrays(each) for each in value)
    return value
