"""A folder that appears complete, or not at all: it is put together under a dotted name beside its place.

The writer holds a lock on the draft, which the kernel frees when the process dies. So the next writer of the same
folder can tell what a killed one left, and removes it.
"""

import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from oarlock.checkpoint.directory import sync_directory
from oarlock.checkpoint.manifest import CheckpointError


@contextmanager
def draft(folder: Path) -> Iterator[Path]:
    """An empty folder to fill, which becomes `folder` when the block ends without an error and else disappears.

    Raises:
        CheckpointError: `folder` exists, or another process is writing it.
    """
    if os.path.lexists(folder):
        raise CheckpointError(f"{folder} exists; name a folder that does not")
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder)
    temporary, descriptor = _create(folder)
    try:
        yield temporary
        sync_directory(temporary)
        os.rename(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        os.close(descriptor)
    sync_directory(folder.parent)


def _create(folder: Path) -> tuple[Path, int]:
    """A new draft and its locked descriptor; one more where somebody took it for a leftover before it was locked."""
    while True:
        temporary = folder.parent / f".{folder.name}.tmp-{secrets.token_hex(6)}"
        temporary.mkdir()
        with suppress(FileNotFoundError):
            descriptor = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if _locked(descriptor) is not False and temporary.is_dir():
                return temporary, descriptor
            os.close(descriptor)


def _remove_leftovers(folder: Path) -> None:
    pattern = re.compile(re.escape(f".{folder.name}.tmp-") + "[0-9a-f]{12}")
    for path in [path for path in folder.parent.iterdir() if pattern.fullmatch(path.name)]:
        with suppress(FileNotFoundError, NotADirectoryError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                free = _locked(descriptor)
                if free is False:
                    raise CheckpointError(f"another process is writing {folder}; wait for it, or name another folder")
                if free:
                    shutil.rmtree(path)
            finally:
                os.close(descriptor)


def _locked(descriptor: int) -> bool | None:
    """Whether the lock was free and is held now; None where the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL, errno.EBADF):
            raise
        return None
    return True
