"""Folders of a cache that are named by the content they were made from: made once, whole or not at all."""

import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def made_once(directory: Path, open_folder: Callable[[Path, bool], T], build: Callable[[Path], None]) -> T:
    """Open a folder of the cache, after making it if it is absent or damaged.

    Several processes may make the same folder at once; the first to finish is kept.

    Args:
        directory: the folder; its name is a hash of all that decides its content.
        open_folder: opens it; if the second argument is true, raises ValueError or FileNotFoundError where it is
            damaged: it is then made again, with a warning.
        build: writes the content into a new folder of the same name.
    """
    if directory.exists():
        try:
            return open_folder(directory, True)
        except (ValueError, FileNotFoundError) as error:
            warnings.warn(f"{error}; tokenising again", stacklevel=3)
            shutil.rmtree(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as temporary:
        building = Path(temporary) / directory.name
        building.mkdir()
        build(building)
        try:
            building.rename(directory)
        except OSError:
            if not directory.exists():
                raise
    return open_folder(directory, False)
