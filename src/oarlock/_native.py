"""The C++ core, loaded once through ctypes.

Each wrapper checks dtype, device, layout and shape of what it hands over, because the C side sees only pointers.
Inputs must already be what the core expects and results are new tensors, so nothing is ever converted or copied unseen.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch  # first: it brings the OpenMP runtime that the core shares with it
from torch import Tensor

ABI = 4

_LIBRARY_NAME = "liboarlock.dylib" if sys.platform == "darwin" else "liboarlock.so"


class _ColumnMask(ctypes.Structure):
    _fields_ = [
        ("bounds", ctypes.c_void_p),
        ("num_masks", ctypes.c_int64),
        ("seqlen_q", ctypes.c_int64),
        ("seqlen_k", ctypes.c_int64),
        ("num_bounds", ctypes.c_int32),
        ("causal", ctypes.c_int32),
    ]


class Heads(ctypes.Structure):
    """Vectors of a token's heads in memory: see ``oarlock_heads`` in the C header."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("token_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
    ]


class Rotation(ctypes.Structure):
    """Angles and sizes of a rotary embedding: see ``oarlock_rotation`` in the C header."""

    _fields_ = [
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("num_angles", ctypes.c_int64),
        ("num_tokens", ctypes.c_int64),
        ("num_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
    ]


_HEADS, _ROTATION = ctypes.POINTER(Heads), ctypes.POINTER(Rotation)

_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "oarlock_version": (ctypes.c_char_p, []),
    "oarlock_isa": (ctypes.c_char_p, []),
    "oarlock_keep_freed_memory": (ctypes.c_int32, []),
    "oarlock_mask_visible_per_row": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32],
    ),
    "oarlock_mask_visible_per_tile": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32],
    ),
    "oarlock_mask_visible_per_key": (
        ctypes.c_int,
        [ctypes.c_void_p, *[ctypes.c_int64] * 5, ctypes.c_void_p],
    ),
    "oarlock_mask_row_spans": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32],
    ),
    "oarlock_mask_bias": (
        ctypes.c_int,
        [ctypes.c_void_p, *[ctypes.c_int64] * 5, ctypes.c_void_p],
    ),
    "oarlock_rms_norm": (
        ctypes.c_int,
        [*[ctypes.c_void_p] * 3, ctypes.c_float, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2, ctypes.c_int32],
    ),
    "oarlock_rms_norm_backward": (
        ctypes.c_int,
        [*[ctypes.c_void_p] * 7, *[ctypes.c_int64] * 2, ctypes.c_int32],
    ),
    "oarlock_swiglu": (
        ctypes.c_int,
        [*[ctypes.c_void_p, ctypes.c_int64] * 3, *[ctypes.c_int64] * 2, ctypes.c_int32],
    ),
    "oarlock_swiglu_backward": (
        ctypes.c_int,
        [*[ctypes.c_void_p, ctypes.c_int64] * 5, *[ctypes.c_int64] * 2, ctypes.c_int32],
    ),
    "oarlock_softmax_cross_entropy": (
        ctypes.c_int,
        [
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p, ctypes.c_int32),
            *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32),
        ],
    ),
    "oarlock_rope": (
        ctypes.c_int,
        [_ROTATION, _HEADS, _HEADS, *[ctypes.c_int32] * 3],
    ),
    "oarlock_norm_rope": (
        ctypes.c_int,
        [_ROTATION, _HEADS, ctypes.c_void_p, ctypes.c_float, ctypes.c_void_p, _HEADS, ctypes.c_int32],
    ),
    "oarlock_norm_rope_backward": (
        ctypes.c_int,
        [_ROTATION, _HEADS, _HEADS, *[ctypes.c_void_p] * 2, _HEADS, ctypes.c_void_p, ctypes.c_int32],
    ),
}

_FAILURES = {1: "invalid argument", 2: "out of memory"}


def _find_library() -> Path:
    override = os.environ.get("OARLOCK_LIBRARY")
    if override:
        if not Path(override).is_file():
            raise ImportError(f"OARLOCK_LIBRARY names {override!r}, which is not a file")
        return Path(override)
    package = importlib.import_module(__package__ or "oarlock")
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
    path = _find_library()
    try:
        lib = ctypes.CDLL(str(path))
        abi = lib.oarlock_abi()
    except (OSError, AttributeError) as error:
        raise ImportError(f"cannot load the C++ core {path}: {error}") from error
    if abi != ABI:
        raise ImportError(f"{path} has ABI {abi}, this Python code needs {ABI}: run `pip install -e .` again")
    for name, (restype, argtypes) in _SIGNATURES.items():
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
    """Lets this process keep the memory that it frees, for its own later allocations.

    The C library otherwise returns large blocks at once, and each new tensor of some MB pays a page fault per 4 KiB.
    Memory use then stays at its peak. Acts on later allocations; cannot be undone.

    Returns:
        whether the C library can do it (glibc only).
    """
    return bool(library().oarlock_keep_freed_memory())


def check_tensor(tensor: Tensor, name: str, *, dtype: torch.dtype, shape: Sequence[int | None]) -> None:
    """Refuses a tensor that the core cannot read in place; None in ``shape`` stands for any size.

    Raises:
        TypeError: not a tensor, another dtype, or not a CPU tensor.
        ValueError: another shape, or not contiguous.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.dtype != dtype:
        raise TypeError(f"{name} must have dtype {dtype}, got {tensor.dtype}")
    if tensor.device.type != "cpu":
        raise TypeError(f"{name} must be on the CPU, got {tensor.device}")
    matches = tensor.dim() == len(shape) and all(
        want is None or got == want for got, want in zip(tensor.shape, shape, strict=True)
    )
    if not matches:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} must have shape [{wanted}], got {list(tensor.shape)}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()}; call .contiguous() first")


def call(name: str, *arguments: object) -> None:
    """Calls a function of the core that returns a status.

    Raises:
        RuntimeError: it failed.
    """
    status = getattr(library(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name} failed: {_FAILURES.get(status, f'status {status}')}")


def _column_mask(bounds: Tensor, causal: bool, seqlen_q: int) -> _ColumnMask:
    check_tensor(bounds, "bounds", dtype=torch.int32, shape=(None, None, None))
    num_masks, seqlen_k, num_bounds = bounds.shape
    if num_bounds not in ((1, 2) if causal else (2, 4)):
        raise ValueError(f"bounds must have {'1 or 2' if causal else '2 or 4'} columns, got {num_bounds}")
    if seqlen_q < 0:
        raise ValueError(f"seqlen_q must not be negative, got {seqlen_q}")
    return _ColumnMask(bounds.data_ptr(), num_masks, seqlen_q, seqlen_k, num_bounds, int(causal))


def _check_rectangle(mask: _ColumnMask, rows: tuple[int, int], keys: tuple[int, int]) -> None:
    for name, (begin, end), size in (("rows", rows, mask.seqlen_q), ("keys", keys, mask.seqlen_k)):
        if not 0 <= begin <= end <= size:
            raise ValueError(f"{name} must be a range inside [0, {size}), got {(begin, end)}")


def mask_visible_per_row(bounds: Tensor, *, causal: bool, seqlen_q: int) -> Tensor:
    """Number of keys that each query row sees.

    Args:
        bounds: int32 [M, Sk, n], contiguous, on the CPU: M column masks in Paddle's format.
        causal: also hide keys j > i + Sk - Sq.
        seqlen_q: number of query rows Sq.

    Returns:
        int64 [M, Sq].
    """
    mask = _column_mask(bounds, causal, seqlen_q)
    counts = torch.empty(bounds.shape[0], seqlen_q, dtype=torch.int64)
    call("oarlock_mask_visible_per_row", ctypes.byref(mask), counts.data_ptr(), torch.get_num_threads())
    return counts


def mask_visible_per_tile(bounds: Tensor, *, causal: bool, seqlen_q: int, block_q: int, block_k: int) -> Tensor:
    """Number of visible (row, key) pairs in each tile of ``block_q`` rows and ``block_k`` keys.

    Args: as :func:`mask_visible_per_row`; the last tile of a row or column may be smaller than the block.

    Returns:
        int64 [M, ceil(Sq / block_q), ceil(Sk / block_k)].
    """
    mask = _column_mask(bounds, causal, seqlen_q)
    if block_q < 1 or block_k < 1:
        raise ValueError(f"block_q and block_k must be positive, got {block_q} and {block_k}")
    counts = torch.empty(bounds.shape[0], -(-seqlen_q // block_q), -(-bounds.shape[1] // block_k), dtype=torch.int64)
    call(
        "oarlock_mask_visible_per_tile",
        *(ctypes.byref(mask), block_q, block_k, counts.data_ptr(), torch.get_num_threads()),
    )
    return counts


def mask_visible_per_key(
    bounds: Tensor, *, causal: bool, seqlen_q: int, index: int, rows: tuple[int, int], keys: tuple[int, int]
) -> Tensor:
    """Number of the given rows that see each of the given keys of mask ``index``.

    Args: as :func:`mask_visible_per_row`; ``rows`` and ``keys`` are half-open ranges inside the mask.

    Returns:
        int64 [keys].
    """
    mask = _column_mask(bounds, causal, seqlen_q)
    _check_rectangle(mask, rows, keys)
    counts = torch.empty(keys[1] - keys[0], dtype=torch.int64)
    call("oarlock_mask_visible_per_key", ctypes.byref(mask), index, *rows, *keys, counts.data_ptr())
    return counts


def mask_row_spans(bounds: Tensor, *, causal: bool, seqlen_q: int) -> tuple[Tensor, Tensor]:
    """First visible key of each row, and one past the last; both 0 for a row that sees nothing.

    Args: as :func:`mask_visible_per_row`.

    Returns:
        two int64 [M, Sq].
    """
    mask = _column_mask(bounds, causal, seqlen_q)
    first = torch.empty(bounds.shape[0], seqlen_q, dtype=torch.int64)
    last = torch.empty_like(first)
    call(
        "oarlock_mask_row_spans",
        *(ctypes.byref(mask), first.data_ptr(), last.data_ptr(), torch.get_num_threads()),
    )
    return first, last


def mask_bias(
    bounds: Tensor, *, causal: bool, seqlen_q: int, index: int, rows: tuple[int, int], keys: tuple[int, int]
) -> Tensor:
    """Additive form of a rectangle of mask ``index``: 0 where a row sees a key, -inf elsewhere.

    Args: as :func:`mask_visible_per_row`; ``rows`` and ``keys`` are half-open ranges inside the mask.

    Returns:
        float32 [rows, keys].
    """
    mask = _column_mask(bounds, causal, seqlen_q)
    _check_rectangle(mask, rows, keys)
    bias = torch.empty(rows[1] - rows[0], keys[1] - keys[0], dtype=torch.float32)
    call("oarlock_mask_bias", ctypes.byref(mask), index, *rows, *keys, bias.data_ptr())
    return bias
