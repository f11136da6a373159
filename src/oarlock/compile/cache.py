"""What `torch.compile` made, kept in a folder, so that the next process need not make it again.

    with CompileCache("cache/compile", model) as cache:   # loads, and says whether that was a hit, and why not
        torch.compile(model)(batch)
    # saves, where something was compiled anew

An entry is one file, written under a temporary name and renamed; any number of processes may write at once. Its name is
a hash of the key: the versions of torch, Python and Triton, the processor or GPU, the configuration of the compiler,
the sources of the model and what it may call in Oarlock. A change of any is a miss, and the message names it.

What is loaded is executed. Use folders that only people write to whom you would let run code.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import json
import linecache
import os
import platform
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

_MAGIC = b"OARLOCKC"
_SUFFIX = ".compiled"
_TRACED = ("attention", "models", "ops", "precision", "parallel")
_PARTS = {
    "torch": "torch",
    "python": "Python",
    "triton": "Triton",
    "device": "the device",
    "config": "the compiler's configuration",
    "model": "the source of the model",
    "oarlock": "the source of Oarlock",
}


class CompileCache:
    """A folder of compiled code.

    Args:
        folder: where it lies; created if missing.
        model: whose classes' sources belong to the key; None for none.
        more: further parts of the key, such as a name for the shapes that are compiled.
        tell: called with a line for people.

    Attributes:
        hit: whether `load` found an entry; None before.
        reason: why not, in words; "" after a hit.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        model: nn.Module | None = None,
        *,
        more: Mapping[str, str] | None = None,
        tell: Callable[[str], None] = print,
    ) -> None:
        self.folder = Path(folder)
        self.key = {**_environment(), "model": _sources(model), **(more or {})}
        self.hit: bool | None = None
        self.reason = ""
        self._tell = tell
        self._misses = 0

    @property
    def path(self) -> Path:
        """The entry's file."""
        digest = hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{digest[:24]}{_SUFFIX}"

    def __enter__(self) -> Self:
        self.load()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.save()

    def load(self) -> bool:
        """Make compiled code of the entry available; whether there was one."""
        began = time.perf_counter()
        self._misses = _num_misses()
        self.hit, self.reason = False, ""
        if self.path.is_file():
            try:
                header, data = _read(self.path)
                torch.compiler.load_cache_artifacts(data)
            except Exception as error:  # a damaged entry costs a compilation, not the run
                self.reason = f"{self.path} is damaged ({_first_line(error)}); it is replaced"
            else:
                self.hit = True
                self._tell(
                    f"compile cache: hit, {len(data) / 2**20:.1f} MiB of {header['made']} loaded from {self.path} "
                    f"in {time.perf_counter() - began:.2f} s"
                )
        else:
            self.reason = self._difference()
        if not self.hit:
            self._tell(f"compile cache: miss: {self.reason}")
        return self.hit

    def save(self) -> Path | None:
        """Keep what was compiled since `load`; None if nothing was."""
        if _num_misses() == self._misses:
            return None
        artifacts = torch.compiler.save_cache_artifacts()
        if artifacts is None:
            return None
        data, _ = artifacts
        header = {
            "key": self.key,
            "made": time.strftime("%Y-%m-%d %H:%M:%S"),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        _write(self.path, header, data)
        self._misses = _num_misses()
        self._tell(f"compile cache: saved {len(data) / 2**20:.1f} MiB to {self.path}")
        return self.path

    def _difference(self) -> str:
        """What the nearest other entry was made with."""
        nearest: tuple[int, float, list[str]] | None = None
        for path in self.folder.glob(f"*{_SUFFIX}"):
            try:
                other = _read_header(path)["key"]
            except (OSError, ValueError, KeyError):
                continue
            names = [name for name in {**self.key, **other} if self.key.get(name) != other.get(name)]
            candidate = (len(names), -path.stat().st_mtime, [self._words(name, other) for name in names])
            nearest = candidate if nearest is None else min(nearest, candidate)
        return f"nothing was compiled into {self.folder} yet" if nearest is None else "; ".join(nearest[2])

    def _words(self, name: str, other: Mapping[str, str]) -> str:
        was, is_now, what = other.get(name, "absent"), self.key.get(name, "absent"), _PARTS.get(name, name)
        if name in ("model", "oarlock", "config"):
            return f"{what} has changed"
        return f"{what} was {was}, is {is_now}"


def _environment() -> dict[str, str]:
    """The parts of the key that do not depend on the model."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "triton": _version("triton"),
        "device": _device(),
        "config": _configuration(),
        "oarlock": _own_digest(Path(__file__).parents[1]),
    }


def _device() -> str:
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        return f"{torch.cuda.get_device_name()} sm_{major}{minor} with CUDA {torch.version.cuda}"
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def _configuration() -> str:
    """Digest of what changes the code that is made."""
    import torch._dynamo.config
    import torch._functorch.config
    import torch._inductor.config

    text = ""
    for module in (torch._dynamo.config, torch._inductor.config, torch._functorch.config):
        values = getattr(module, "get_config_copy", lambda: {})()  # a torch without it: the entry is checked by torch
        text += repr(sorted((name, _stable(value)) for name, value in values.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _stable(value: Any) -> str:
    """A text that is the same in every process: sets have an order, objects no address."""
    if isinstance(value, (set, frozenset)):
        return repr(sorted(map(_stable, value)))
    if isinstance(value, Mapping):
        return repr(sorted((_stable(k), _stable(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return repr([_stable(each) for each in value])
    return repr(value) if isinstance(value, (str, bytes, int, float, type(None))) else type(value).__name__


def _sources(model: nn.Module | None) -> str:
    """Digest of the files in which the classes of a model stand."""
    if model is None:
        return ""
    files = set()
    for kind in {type(module) for module in model.modules()}:
        try:
            files.add(inspect.getsourcefile(kind) or "")
        except (TypeError, OSError):
            files.add("")
    digest = hashlib.sha256()
    for file in sorted(files):
        name = sys.modules[nn.__name__].__file__ or ""
        if file and not file.startswith(str(Path(name).parents[1])):  # torch itself is in the key by its version
            # A notebook's cell is no file; Python keeps its lines.
            path = Path(file)
            digest.update(path.read_bytes() if path.is_file() else "".join(linecache.getlines(file)).encode())
    return digest.hexdigest()[:16]


def _own_digest(package: Path) -> str:
    """Digest of the parts of Oarlock whose code a graph may contain."""
    digest = hashlib.sha256()
    for folder in _TRACED:
        for file in sorted((package / folder).rglob("*.py")):
            digest.update(str(file.relative_to(package)).encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _num_misses() -> int:
    """How often something was compiled rather than found, in this process."""
    from torch._dynamo.utils import counters

    return counters["inductor"]["fxgraph_cache_miss"] + counters["inductor"]["fxgraph_cache_bypass"]


def _write(path: Path, header: dict[str, Any], data: bytes) -> None:
    text = json.dumps(header).encode()
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".tmp", delete=False) as file:
        try:
            file.write(_MAGIC + struct.pack("<Q", len(text)) + text + data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _read_header(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        magic = file.read(16)
        if len(magic) < 16 or magic[:8] != _MAGIC:
            raise ValueError("not a file of this cache")
        (length,) = struct.unpack("<Q", magic[8:])
        if length > 1 << 20:
            raise ValueError("its header is too long")
        return json.loads(file.read(length))


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    header = _read_header(path)
    content = path.read_bytes()
    data = content[16 + struct.unpack("<Q", content[8:16])[0] :]
    if hashlib.sha256(data).hexdigest() != header["sha256"]:
        raise ValueError("its digest does not match")
    return header, data


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
