"""Recordings as files: the name's ending says which kind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from oarlock.memory.events import Recording
from oarlock.memory.perfetto import write_perfetto
from oarlock.memory.torch_snapshot import write_torch_snapshot
from oarlock.memory.view import write_page

_WRITERS: dict[str, Callable[[Recording, Path], Path]] = {
    ".html": write_page,
    ".npz": lambda recording, path: recording.save(path),
    ".pickle": write_torch_snapshot,
    ".json": write_perfetto,
}
SUFFIXES = tuple(_WRITERS)
"""Endings of names that :func:`write` knows."""


def write(recording: Recording, path: str | os.PathLike[str]) -> Path:
    """Writes a recording; returns the path.

    Raises:
        ValueError: the name ends in none of `SUFFIXES`.
    """
    target = Path(path)
    writer = _WRITERS.get(target.suffix)
    if writer is None:
        raise ValueError(f"{target}: the name must end in {', '.join(SUFFIXES)}, which says what is written")
    return writer(recording, target)
