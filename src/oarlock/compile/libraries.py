"""The libraries of C++ kernels that the inductor built on a CPU: torch's artifacts have their sources only.

Building them takes most of the time of compiling. The inductor finds a library by a hash of source and compiler command
below its folder, so one that is put there is one that need not be built.
"""

from __future__ import annotations

import json
import os
import secrets
import struct
from pathlib import Path, PurePosixPath


def with_libraries(artifacts: bytes, since: float) -> bytes:
    """Torch's artifacts, and the libraries of the inductor's folder that this process has loaded, or built.

    Args:
        artifacts: what torch saves.
        since: time (`time.time`) from which on a library counts as built by it, such as one that only tries whether the
            processor has some instructions.
    """
    folder = _folder()
    built = [path for path in folder.rglob("*.so") if path.stat().st_mtime >= since]
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted({*_loaded(folder), *built})}
    table = json.dumps([[name, len(data)] for name, data in files.items()]).encode()
    return struct.pack("<QQ", len(table), len(artifacts)) + table + artifacts + b"".join(files.values())


def put_libraries(data: bytes) -> bytes:
    """Put the libraries of `with_libraries` where the inductor looks for them; returns torch's artifacts.

    Raises:
        ValueError: `data` is something else, or names a place outside of the folder.
        OSError: the folder cannot be written.
    """
    if len(data) < 16:
        raise ValueError("its content is cut")
    length, size = struct.unpack("<QQ", data[:16])
    table = json.loads(data[16 : 16 + length])
    position = 16 + length + size
    if position + sum(int(size) for _, size in table) != len(data):
        raise ValueError("its content is cut")
    for name, size_of_file in table:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or path.suffix != ".so":
            raise ValueError(f"{name} is no library of the inductor's folder")
        _put(_folder() / path, data[position : position + size_of_file])
        position += size_of_file
    return data[16 + length : 16 + length + size]


def _put(path: Path, data: bytes) -> None:
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.chmod(0o755)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _folder() -> Path:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir()).resolve()


def _loaded(folder: Path) -> list[Path]:
    """Libraries below a folder that are mapped into this process; elsewhere than on Linux, none are known."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    mapped = {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    found = [Path(name) for name in mapped if name.endswith(".so")]
    return [path for path in found if path.is_relative_to(folder) and path.is_file()]
