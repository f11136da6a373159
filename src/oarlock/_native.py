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
from dataclasses import dataclass
from pathlib import Path

import torch  # first: it brings the OpenMP runtime that the core shares with it
from torch import Tensor

ABI = 5

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


class _Vectors(ctypes.Structure):
    """A tensor [batch, tokens, heads, dim]: see ``oarlock_vectors`` in the C header."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("batch_stride", ctypes.c_int64),
        ("token_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("dim_stride", ctypes.c_int64),
    ]


class _Attention(ctypes.Structure):
    """Sizes, mask and options of a call: see ``oarlock_attention`` in the C header."""

    _fields_ = [
        ("mask", _ColumnMask),
        ("mask_batch", ctypes.c_int64),
        ("mask_heads", ctypes.c_int64),
        ("block_mask", ctypes.c_void_p),
        ("block_mask_batch", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("seqlen_q", ctypes.c_int64),
        ("seqlen_k", ctypes.c_int64),
        ("num_heads_q", ctypes.c_int64),
        ("num_heads_k", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("value_dim", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("dropout_threshold", ctypes.c_uint32),
        ("dropout_scale", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("dtype", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
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
    "oarlock_attention_forward": (
        ctypes.c_int,
        [ctypes.c_void_p] * 6,
    ),
    "oarlock_attention_backward": (
        ctypes.c_int,
        [ctypes.c_void_p] * 11,
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
    """Lets this process keep the memory that it frees, for its own later allocations, in huge pages where it can.

    The C library otherwise returns large blocks at once, and each new tensor of some MB pays a page fault per 4 KiB.
    Address space of 4 GiB is set aside; memory is taken only as it is used.
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


ATTENTION_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""Dtypes that the fused attention takes, with their numbers in the C header."""


@dataclass(frozen=True)
class AttentionOptions:
    """What belongs to a fused attention besides its tensors.

    Args:
        bounds: int32 [M, Sk, n], contiguous, on the CPU: the column masks of the M = mask_batch * mask_heads pairs.
        causal: as :func:`mask_visible_per_row`.
        mask_batch: 1 or the batch size.
        mask_heads: must divide the number of query heads.
        scale: factor of the scores.
        block_mask: None or bool [1 or batch, mask_heads, ceil(Sq / 128), ceil(Sk / 128)], contiguous; False hides.
        dropout_threshold: unsigned 32-bit, 0 for no dropout.
        dropout_scale: factor of the kept probabilities.
        seed, offset: of the dropout, read as unsigned 64-bit.
    """

    bounds: Tensor
    causal: bool
    mask_batch: int
    mask_heads: int
    scale: float
    block_mask: Tensor | None = None
    dropout_threshold: int = 0
    dropout_scale: float = 1.0
    seed: int = 0
    offset: int = 0


def _vectors(x_BSHD: Tensor) -> _Vectors:
    return _Vectors(x_BSHD.data_ptr(), *x_BSHD.stride())


def _attention_call(query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> _Attention:
    """The call, after a check that the tensors fit together; any strides will do."""
    batch, seqlen_q, num_heads_q, head_dim = query.shape
    seqlen_k, num_heads_k, value_dim = value.shape[1:]
    for name, x, shape in (
        ("query", query, (batch, seqlen_q, num_heads_q, head_dim)),
        ("key", key, (batch, seqlen_k, num_heads_k, head_dim)),
        ("value", value, (batch, seqlen_k, num_heads_k, value_dim)),
    ):
        if x.dtype not in ATTENTION_DTYPES or x.dtype != query.dtype or x.device.type != "cpu":
            raise TypeError(f"{name} must be float32, bfloat16 or float16 like query on the CPU, got {x.dtype}")
        if tuple(x.shape) != shape:
            raise ValueError(f"{name} must have shape {list(shape)}, got {list(x.shape)}")
    mask = _column_mask(options.bounds, options.causal, seqlen_q)
    if mask.seqlen_k != seqlen_k or mask.num_masks != options.mask_batch * options.mask_heads:
        raise ValueError(
            f"bounds must have shape [{options.mask_batch * options.mask_heads}, {seqlen_k}, n], "
            f"got {list(options.bounds.shape)}"
        )
    block_mask, blocks = options.block_mask, (-(-seqlen_q // 128), -(-seqlen_k // 128))
    if block_mask is not None:
        check_tensor(block_mask, "block_mask", dtype=torch.bool, shape=(None, options.mask_heads, *blocks))
    return _Attention(
        mask,
        options.mask_batch,
        options.mask_heads,
        None if block_mask is None else block_mask.data_ptr(),
        1 if block_mask is None else block_mask.shape[0],
        *(batch, seqlen_q, seqlen_k, num_heads_q, num_heads_k, head_dim, value_dim),
        options.seed % 2**64,
        options.offset % 2**64,
        options.dropout_threshold,
        options.dropout_scale,
        options.scale,
        ATTENTION_DTYPES[query.dtype],
        torch.get_num_threads(),
    )


def attention_forward(query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> tuple[Tensor, Tensor]:
    """Attention under column masks: ``softmax(scale * Q K^T + mask) V`` and its log-sum-exp.

    Args:
        query: [B, Sq, Hq, D], key: [B, Sk, Hk, D], value: [B, Sk, Hk, Dv]: one dtype, any strides.
        options: mask and the rest.

    Returns:
        out [B, Sq, Hq, Dv] in the dtype of ``query``, and lse float32 [B, Hq, Sq]; 0 and -inf for rows without keys.
    """
    call_ = _attention_call(query, key, value, options)
    out = query.new_empty((*query.shape[:3], value.shape[3]))
    lse = torch.empty(query.shape[0], query.shape[2], query.shape[1], dtype=torch.float32)
    tensors = [_vectors(x) for x in (query, key, value, out)]
    call("oarlock_attention_forward", ctypes.byref(call_), *map(ctypes.byref, tensors), lse.data_ptr())
    return out, lse


def attention_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    options: AttentionOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of :func:`attention_forward` with its inputs and results; grad_lse None stands for zeros.

    Returns:
        dq, dk, dv in the dtype of ``query``.
    """
    call_ = _attention_call(query, key, value, options)
    for name, x in (("out", out), ("grad_out", grad_out)):
        if x.dtype != query.dtype or x.shape != (*query.shape[:3], value.shape[3]):
            raise ValueError(f"{name} must be {query.dtype} of shape {[*query.shape[:3], value.shape[3]]}")
    rows = (query.shape[0], query.shape[2], query.shape[1])
    check_tensor(lse, "lse", dtype=torch.float32, shape=rows)
    if grad_lse is not None:
        check_tensor(grad_lse, "grad_lse", dtype=torch.float32, shape=rows)
    has_rows = grad_out.numel() > 0 or query.numel() > 0
    make = torch.empty if has_rows else torch.zeros
    dq, dk, dv = (make(x.shape, dtype=x.dtype) for x in (query, key, value))
    before = [_vectors(x) for x in (query, key, value, out)]
    after = [_vectors(x) for x in (dq, dk, dv)]
    incoming = _vectors(grad_out)
    call(
        "oarlock_attention_backward",
        *(ctypes.byref(call_), *map(ctypes.byref, before), lse.data_ptr(), ctypes.byref(incoming)),
        *(None if grad_lse is None else grad_lse.data_ptr(), *map(ctypes.byref, after)),
    )
    return dq, dk, dv
