"""What `torch.compile` made, kept in a folder, so that the next process need not make it again.

    with CompileCache("cache/compile", model) as cache:   # loads, and says whether that was a hit, and why not
        torch.compile(model)(batch)
    # saves, where something was compiled anew

An entry is one file, written under a temporary name and renamed; any number of processes may write at once. It has
torch's artifacts and, on a CPU, the libraries of C++ kernels, which take longest to build. Its name is a hash of the
key: the versions of torch, Python and Triton, the processor or GPU, the configuration of the compiler, the sources of
the model and what it may call in Oarlock. A change of any is a miss, and the message names it: the option, the file.

What is loaded is executed. Use folders that only people write to whom you would let run code.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from oarlock.compile.cache_entry import read_entry, read_key, write_entry
from oarlock.compile.cache_key import make_key
from oarlock.compile.libraries import put_libraries, with_libraries

_SUFFIX = ".compiled"


class CompileCache:
    """A folder of compiled code.

    Args:
        folder: where it lies; created if missing.
        model: a module whose classes' sources belong to the key, or a function; None for none.
        more: further parts of the key, such as a name for the shapes that are compiled.
        tell: called with a line for people.

    Attributes:
        hit: whether `load` found an entry; None before.
        reason: why not, in words; "" after a hit.

    Raises:
        TypeError: `model` has no source.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        model: nn.Module | Callable[..., Any] | None = None,
        *,
        more: Mapping[str, str] | None = None,
        tell: Callable[[str], None] = print,
    ) -> None:
        self.folder = Path(folder)
        self._key = make_key(model, more or {})
        self.hit: bool | None = None
        self.reason = ""
        self._tell = tell
        self._misses = 0
        self._loaded_at = time.time()

    @property
    def key(self) -> dict[str, str]:
        """What an entry depends on: name -> version or digest."""
        return dict(self._key.parts)

    @property
    def path(self) -> Path:
        """The entry's file."""
        return self.folder / f"{self._key.digest}{_SUFFIX}"

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
        self._misses, self._loaded_at = _num_misses(), time.time()
        self.hit, self.reason = False, ""
        if self.path.is_file():
            try:
                made, data = read_entry(self.path)
                if torch.compiler.load_cache_artifacts(put_libraries(data)) is None:
                    raise ValueError("torch cannot read its content")
            except OSError as error:
                self.reason = f"{self.path} cannot be read ({error.strerror or error})"
            except Exception as error:  # a damaged entry costs a compilation, not the run
                self.reason = f"{self.path} is damaged ({_first_line(error)}); it is replaced"
            else:
                self.hit = True
                self._tell(
                    f"compile cache: hit, {len(data) / 2**20:.1f} MiB of {made} loaded from {self.path} "
                    f"in {time.perf_counter() - began:.2f} s"
                )
        else:
            self.reason = self._difference()
        if not self.hit:
            self._tell(f"compile cache: miss: {self.reason}")
        return self.hit

    def save(self) -> Path | None:
        """Keep what was compiled since `load`; None if nothing was, or if it cannot be written, which is told."""
        if _num_misses() == self._misses:
            return None
        artifacts = torch.compiler.save_cache_artifacts()
        if artifacts is None:
            return None
        try:
            data = with_libraries(artifacts[0], self._loaded_at)
            self.folder.mkdir(parents=True, exist_ok=True)
            write_entry(self.path, self._key, data)
        except OSError as error:  # the work is done: the next run compiles again, this one goes on
            self._tell(f"compile cache: not saved: {error}")
            return None
        self._misses = _num_misses()
        self._tell(f"compile cache: saved {len(data) / 2**20:.1f} MiB to {self.path}")
        return self.path

    def _difference(self) -> str:
        """What the nearest other entry was made with."""
        nearest: tuple[int, float, list[str]] | None = None
        for path in self.folder.glob(f"*{_SUFFIX}") if self.folder.is_dir() else ():
            try:
                words = self._key.differences(read_key(path)) or [f"{path} has this key under another name"]
                candidate = (len(words), -path.stat().st_mtime, words)
            except (OSError, ValueError):
                continue
            nearest = candidate if nearest is None else min(nearest, candidate)
        return f"nothing was compiled into {self.folder} yet" if nearest is None else "; ".join(nearest[2])


def _num_misses() -> int:
    """How often something was compiled rather than found, in this process."""
    from torch._dynamo.utils import counters

    return counters["inductor"]["fxgraph_cache_miss"] + counters["inductor"]["fxgraph_cache_bypass"]


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
