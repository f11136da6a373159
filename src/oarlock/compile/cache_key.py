"""What an entry of the cache of compiled code depends on: versions, device, configuration, sources."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import json
import linecache
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import nn

_TRACED = ("attention", "models", "ops", "precision", "parallel")
_WORDS = {
    "torch": "torch",
    "python": "Python",
    "triton": "Triton",
    "device": "the device",
    "config": "the compiler's configuration",
    "model": "the source of the model",
    "oarlock": "the source of Oarlock",
}
_MOST_NAMED = 3


@dataclass(frozen=True)
class CacheKey:
    """Texts by name; two keys are equal if all are.

    Attributes:
        parts: name -> version, or the digest of the details of that name.
        details: of the configuration: option -> value; of sources: file -> digest.
    """

    parts: Mapping[str, str]
    details: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def digest(self) -> str:
        """24 hexadecimal digits."""
        return _digest(json.dumps(dict(self.parts), sort_keys=True))[:24]

    def differences(self, other: CacheKey) -> list[str]:
        """In words, one for each part that another key has otherwise."""
        names = [name for name in {**self.parts, **other.parts} if self.parts.get(name) != other.parts.get(name)]
        return [self._words(name, other) for name in names]

    def _words(self, name: str, other: CacheKey) -> str:
        what, ours, theirs = _WORDS.get(name, name), self.details.get(name), other.details.get(name)
        if ours is None or theirs is None:
            return f"{what} was {other.parts.get(name, 'absent')}, is {self.parts.get(name, 'absent')}"
        changed = [key for key in {**theirs, **ours} if ours.get(key) != theirs.get(key)]
        if name == "config":
            named = [f"{key} was {theirs.get(key, 'absent')}, is {ours.get(key, 'absent')}" for key in changed]
        else:
            named = [
                f"{key} {'is new' if key not in theirs else 'is gone' if key not in ours else 'was edited'}"
                for key in changed
            ]
        rest = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        return f"{what} has changed ({', '.join(named[:_MOST_NAMED])}{rest})"


def make_key(code: nn.Module | Callable[..., Any] | None, more: Mapping[str, str]) -> CacheKey:
    """The key of code that is compiled here and now.

    Args:
        code: the model or function whose source belongs to the key.
        more: further parts.

    Raises:
        TypeError: `code` is neither.
    """
    details = {
        "config": _configuration(),
        "model": _sources(code),
        "oarlock": _own_sources(Path(__file__).parents[1]),
    }
    parts = {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "triton": _version("triton"),
        "device": _device(),
        **{name: _digest(json.dumps(texts, sort_keys=True))[:16] for name, texts in details.items()},
        **more,
    }
    return CacheKey(parts, details)


def _digest(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _device() -> str:
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        return f"{torch.cuda.get_device_name()} sm_{major}{minor} with CUDA {torch.version.cuda}"
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def _configuration() -> dict[str, str]:
    """The options of the compiler, which change the code that it makes."""
    import torch._dynamo.config
    import torch._functorch.config
    import torch._inductor.config

    found: dict[str, str] = {}
    for module in (torch._dynamo.config, torch._inductor.config, torch._functorch.config):
        part = module.__name__.removesuffix(".config").removeprefix("torch._")
        values = getattr(module, "get_config_copy", lambda: {})()  # a torch without it: the entry is checked by torch
        found |= {f"{part}.{name}": _stable(value) for name, value in values.items()}
    return found


def _stable(value: Any) -> str:
    """A text that is the same in every process: sets have an order, objects no address."""
    if isinstance(value, (set, frozenset)):
        return repr(sorted(map(_stable, value)))
    if isinstance(value, Mapping):
        return repr(sorted((_stable(k), _stable(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return repr([_stable(each) for each in value])
    return repr(value) if isinstance(value, (str, bytes, int, float, type(None))) else type(value).__name__


def _sources(code: nn.Module | Callable[..., Any] | None) -> dict[str, str]:
    """The files in which the classes of a model, or a function, stand; torch's own are known by its version."""
    if code is None:
        return {}
    kinds: Iterable[Any]
    if isinstance(code, nn.Module):
        kinds = {type(module) for module in code.modules()}
    else:
        function = inspect.unwrap(code.func if isinstance(code, functools.partial) else code)
        if not hasattr(getattr(function, "__func__", function), "__code__"):
            raise TypeError(
                f"CompileCache keys by the source of a module or a function, not of {type(code).__name__}; "
                "give None and name the code in more={...}"
            )
        kinds = [function]
    torchs = str(Path(torch.__file__).parent)
    found: dict[str, str] = {}
    for kind in kinds:
        file = _file(kind)
        if file is None:  # made by exec, or typed after `python -c`
            found[f"{kind.__module__}.{kind.__qualname__}"] = _code_digest(kind)
        elif not file.startswith(torchs):
            # A notebook's cell is no file; Python keeps its lines.
            path = Path(file)
            found[file] = _digest(path.read_bytes() if path.is_file() else "".join(linecache.getlines(file)))
    return found


def _file(kind: Any) -> str | None:
    try:
        file = inspect.getsourcefile(kind)
    except (TypeError, OSError):
        return None
    return file if file and (Path(file).is_file() or linecache.getlines(file)) else None


def _code_digest(kind: Any) -> str:
    """Digest of the bytecode of a function, or of a class's methods."""
    values = vars(kind).values() if inspect.isclass(kind) else [kind]
    codes = [getattr(getattr(value, "__func__", value), "__code__", None) for value in values]
    return _digest(repr([_plain_code(code) for code in codes if code is not None]))


def _plain_code(code: CodeType) -> tuple[Any, ...]:
    constants = [_plain_code(value) if isinstance(value, CodeType) else repr(value) for value in code.co_consts]
    return code.co_code, constants, code.co_names, code.co_varnames


def _own_sources(package: Path) -> dict[str, str]:
    """The parts of Oarlock whose code a graph may contain."""
    files = (file for folder in _TRACED for file in sorted((package / folder).rglob("*.py")))
    return {str(file.relative_to(package)): _digest(file.read_bytes())[:16] for file in files}
