"""Named flat arrays of a split on disk, `<split>.<name>.bin`: appended as a stream, read through memory maps."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

Kinds = Mapping[str, np.dtype[Any]]
"""Name -> dtype."""


class ArrayWriter:
    """Appends to the arrays of one split.

    Args:
        folder: exists.
        split: first part of the files' names.
        kinds: the arrays.
    """

    def __init__(self, folder: Path, split: str, kinds: Kinds) -> None:
        self._kinds = kinds
        self._files = {name: path.open("wb") for name, path in paths(folder, split, kinds).items()}

    def append(self, name: str, values: ArrayLike) -> None:
        """Add some values to the end of an array."""
        self._files[name].write(np.asarray(values, self._kinds[name]).tobytes())

    def __enter__(self) -> "ArrayWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for file in self._files.values():
            file.close()


def paths(folder: Path, split: str, kinds: Kinds) -> dict[str, Path]:
    """Name -> file."""
    return {name: folder / f"{split}.{name}.bin" for name in kinds}


def open_arrays(folder: Path, split: str, kinds: Kinds) -> dict[str, np.ndarray]:
    """The arrays of a split, memory-mapped and read-only.

    Raises:
        ValueError: a file whose size is no multiple of its dtype's.
    """
    arrays = {}
    for name, path in paths(folder, split, kinds).items():
        if path.stat().st_size == 0 or path.stat().st_size % kinds[name].itemsize:
            raise ValueError(f"{path}: {path.stat().st_size} bytes are no array of {kinds[name].name}")
        arrays[name] = np.asarray(np.memmap(path, kinds[name], mode="r"))
    return arrays
