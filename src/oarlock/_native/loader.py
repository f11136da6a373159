"""Finding and loading the C++ core, once per process."""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import sys
from pathlib import Path

import torch  # noqa: F401 (first: it brings the OpenMP runtime that the core shares with it)

from oarlock._native.abi import ABI, SIGNATURES

_LIBRARY_NAME = "liboarlock.dylib" if sys.platform == "darwin" else "liboarlock.so"
_FAILURES = {1: "invalid argument", 2: "out of memory"}


def library_path() -> Path:
    """The file of the core: OARLOCK_LIBRARY if set, else the one beside the package.

    Raises:
        ImportError: there is none.
    """
    override = os.environ.get("OARLOCK_LIBRARY")
    if override:
        if not Path(override).is_file():
            raise ImportError(f"OARLOCK_LIBRARY names {override!r}, which is not a file")
        return Path(override)
    package = importlib.import_module(__name__.partition(".")[0])
    folders = [Path(entry) for entry in package.__path__]
    for folder in folders:
        if (folder / _LIBRARY_NAME).is_file():
            return folder / _LIBRARY_NAME
    raise ImportError(
        f"the C++ core {_LIBRARY_NAME} is not built (looked in {', '.join(map(str, folders))}). "
        "Run `pip install -e .` in the repository, or set OARLOCK_LIBRARY to a built library."
    )


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded core, its functions typed and its ABI number checked.

    Raises:
        ImportError: the library is missing, cannot be loaded, or was built from other sources.
    """
    path = library_path()
    try:
        lib = ctypes.CDLL(str(path))
        abi = lib.oarlock_abi()
    except (OSError, AttributeError) as error:
        raise ImportError(f"cannot load the C++ core {path}: {error}") from error
    if abi != ABI:
        raise ImportError(f"{path} has ABI {abi}, this Python code needs {ABI}: run `pip install -e .` again")
    for name, (restype, argtypes) in SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = restype, argtypes
    if not lib.oarlock_isa():
        raise ImportError(
            f"OARLOCK_ISA={os.environ['OARLOCK_ISA']!r} is not an instruction set of this CPU that the core knows; "
            "use baseline, avx2 or avx512, or unset it for the best one"
        )
    return lib


def version() -> str:
    """Version of the package that the loaded core was built for (``"unversioned"`` for a plain CMake build)."""
    return library().oarlock_version().decode()


def isa() -> str:
    """Instruction set of the core's kernels: ``"baseline"``, ``"avx2"`` or ``"avx512"`` (OARLOCK_ISA forces one)."""
    return library().oarlock_isa().decode()


def keep_freed_memory() -> bool:
    """Lets this process keep the memory that it frees, for its own later allocations, in huge pages where it can.

    The C library otherwise returns large blocks at once, and each new tensor of some MB pays a page fault per 4 KiB.
    Address space of 4 GiB is set aside; memory is taken only as it is used.
    Memory use then stays at its peak. Acts on later allocations; cannot be undone.

    Returns:
        whether the C library can do it (glibc only).
    """
    return bool(library().oarlock_keep_freed_memory())


def call(name: str, *arguments: object) -> None:
    """Calls a function of the core that returns a status.

    Raises:
        RuntimeError: it failed.
    """
    status = getattr(library(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name} failed: {_FAILURES.get(status, f'status {status}')}")
