"""The folder of checkpoints: one writer at a time, a new checkpoint appears by one rename, an old one leaves by one.

Names that start with a dot are not checkpoints: `.tmp-step-N-*` is being written, `.trash-step-N-*` is being deleted.
What a killed writer left of them is removed by the next save, which holds the folder's lock while it works.
"""

import errno
import fcntl
import os
import re
import secrets
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from oarlock.checkpoint.manifest import CheckpointError, parse_step_directory, step_directory

_LEFT_OVER = re.compile(r"\.(tmp|trash)-step-\d+(\.\d+)?-[0-9a-f]{12}")
_LOCK_UNSUPPORTED = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL, errno.EBADF}


def list_checkpoints(root: str | PathLike[str]) -> list[Path]:
    """The checkpoints in `root`, oldest step first; [] if there is no such folder. Damage is not looked for."""
    newest = {step: path for (step, _), path in _generations(Path(root))}  # the highest of a step is the last written
    return [newest[step] for step in sorted(newest)]


def step_of(path: Path) -> int:
    """The step of a checkpoint's directory, from its name."""
    key = parse_step_directory(path.name)
    assert key is not None
    return key[0]


@contextmanager
def locked(root: Path) -> Iterator[bool]:
    """Create `root` and hold its lock; yields False, after a warning, where the file system has no locks.

    The kernel frees the lock when the process dies, so a killed writer never blocks the next one.

    Raises:
        CheckpointError: another process is saving into `root`.
    """
    created = [folder for folder in (root, *root.parents) if not folder.exists()]
    root.mkdir(parents=True, exist_ok=True)
    for folder in created:
        sync_directory(folder.parent)
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield _try_lock(descriptor, root)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, root: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CheckpointError(
            f"another process is saving into {root}; give every run a folder of its own, or wait for it to finish"
        ) from None
    except OSError as error:
        if error.errno not in _LOCK_UNSUPPORTED:
            raise
        warnings.warn(
            f"{root}: the file system has no locks ({error.strerror}): two runs that save here at once are not kept "
            "apart, and what killed saves leave behind (.tmp-*, .trash-*) is not removed",
            stacklevel=2,
        )
        return False
    return True


def tidy(root: Path) -> None:
    """Remove what killed saves left in `root`; only for the holder of the lock."""
    for name in os.listdir(root):
        if _LEFT_OVER.fullmatch(name):
            _remove(root / name)
    for step in {step_of(path) for path in list_checkpoints(root)}:
        _keep_newest_generation(root, step)


def new_temporary(root: Path, step: int) -> Path:
    """Create the directory in which the checkpoint of `step` is put together."""
    path = root / f".tmp-{step_directory(step)}-{secrets.token_hex(6)}"
    path.mkdir()
    return path


def publish(temporary: Path, root: Path, step: int) -> Path:
    """Give a finished directory its name, durably. An existing checkpoint of the step is replaced: the new one first
    appears beside it as the next generation, so there is no moment without a complete one."""
    sync_directory(temporary)
    existing = [path for path in list_checkpoints(root) if step_of(path) == step]
    generation = _generation(existing[-1]) + 1 if existing else 0
    os.rename(temporary, root / step_directory(step, generation))
    sync_directory(root)
    return _keep_newest_generation(root, step)


def retain(root: Path, step: int, keep_last: int) -> None:
    """Delete all but the last `keep_last` checkpoints up to `step`; later steps (of another timeline) stay."""
    checkpoints = [path for path in list_checkpoints(root) if step_of(path) <= step]
    for path in checkpoints[:-keep_last]:
        _discard(path)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _generations(root: Path) -> list[tuple[tuple[int, int], Path]]:
    """((step, generation), path) of all directories of checkpoints, in this order."""
    try:
        names = os.listdir(root)
    except FileNotFoundError:
        return []
    found = [(key, root / name) for name in names if (key := parse_step_directory(name)) is not None]
    return sorted(pair for pair in found if pair[1].is_dir())


def _keep_newest_generation(root: Path, step: int) -> Path:
    *older, newest = [path for (of_step, _), path in _generations(root) if of_step == step]
    for path in older:
        _discard(path)
    plain = root / step_directory(step)
    if newest != plain:
        os.rename(newest, plain)
        sync_directory(root)
    return plain


def _generation(path: Path) -> int:
    key = parse_step_directory(path.name)
    assert key is not None
    return key[1]


def _discard(path: Path) -> None:
    """Delete a checkpoint; it is renamed first, so that a kill never leaves half of one under a checkpoint's name."""
    trash = path.parent / f".trash-{path.name}-{secrets.token_hex(6)}"
    os.rename(path, trash)
    sync_directory(path.parent)
    _remove(trash)


def _remove(path: Path) -> None:
    """Delete a directory; of a symbolic link to one, which somebody put in its place, only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
