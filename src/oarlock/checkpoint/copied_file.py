"""A new file whose parts are partly copied from other files by the kernel, without passing through this process."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

_STEP_BYTES = 1 << 24
_CANNOT = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}


class CopiedFile:
    """A file that is synced to the disk when the block ends without an error; it keeps no digests.

    Args:
        path: must not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sources: dict[Path, int] = {}

    def __enter__(self) -> Self:
        self._file = open(self._path, "xb", buffering=0)
        return self

    def write(self, data: Any) -> None:
        """Append all of `data` (any buffer of bytes); an OSError carries the file's name."""
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            error.filename = self._path.name
            raise

    def copy(self, source: Path, offset: int, data: memoryview, progress: Callable[[int], None]) -> None:
        """Append `data`, which lies at a byte of a file.

        Between two file systems, and where there is no such system call, it is written as `write` does.
        """
        done = 0
        while done < len(data):
            count = min(_STEP_BYTES, len(data) - done)
            copied = self._copied(source, offset + done, count)
            if not copied:
                self.write(data[done : done + count])
                copied = count
            done += copied
            progress(copied)

    def _copied(self, source: Path, offset: int, count: int) -> int:
        """How many bytes the kernel has copied; 0 if it cannot."""
        if not hasattr(os, "copy_file_range"):
            return 0
        if source not in self._sources:
            self._sources[source] = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.copy_file_range(self._sources[source], self._file.fileno(), count, offset)
        except OSError as error:
            if error.errno in _CANNOT:
                return 0
            error.filename = self._path.name
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                os.fsync(self._file.fileno())
        except OSError as error:
            error.filename = self._path.name
            raise
        finally:
            self._file.close()
            for descriptor in self._sources.values():
                os.close(descriptor)
