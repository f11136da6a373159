"""Column masks in the core: exact counts, spans and biases, without looking at all Sq x Sk pairs."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from oarlock._native import abi
from oarlock._native.loader import call
from oarlock._native.tensors import check_tensor


def column_mask(bounds: Tensor, causal: bool, seqlen_q: int) -> abi.ColumnMask:
    """The masks as the core takes them, after a check; they live as long as ``bounds``."""
    check_tensor(bounds, "bounds", dtype=torch.int32, shape=(None, None, None))
    num_masks, seqlen_k, num_bounds = bounds.shape
    if num_bounds not in ((1, 2) if causal else (2, 4)):
        raise ValueError(f"bounds must have {'1 or 2' if causal else '2 or 4'} columns, got {num_bounds}")
    if seqlen_q < 0:
        raise ValueError(f"seqlen_q must not be negative, got {seqlen_q}")
    return abi.ColumnMask(bounds.data_ptr(), num_masks, seqlen_q, seqlen_k, num_bounds, int(causal))


def _check_rectangle(mask: abi.ColumnMask, rows: tuple[int, int], keys: tuple[int, int]) -> None:
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
    mask = column_mask(bounds, causal, seqlen_q)
    counts = torch.empty(bounds.shape[0], seqlen_q, dtype=torch.int64, device="cpu")
    call("oarlock_mask_visible_per_row", ctypes.byref(mask), counts.data_ptr(), torch.get_num_threads())
    return counts


def mask_visible_per_tile(bounds: Tensor, *, causal: bool, seqlen_q: int, block_q: int, block_k: int) -> Tensor:
    """Number of visible (row, key) pairs in each tile of ``block_q`` rows and ``block_k`` keys.

    Args: as :func:`mask_visible_per_row`; the last tile of a row or column may be smaller than the block.

    Returns:
        int64 [M, ceil(Sq / block_q), ceil(Sk / block_k)].
    """
    mask = column_mask(bounds, causal, seqlen_q)
    if block_q < 1 or block_k < 1:
        raise ValueError(f"block_q and block_k must be positive, got {block_q} and {block_k}")
    counts = torch.empty(
        bounds.shape[0], -(-seqlen_q // block_q), -(-bounds.shape[1] // block_k), dtype=torch.int64, device="cpu"
    )
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
    mask = column_mask(bounds, causal, seqlen_q)
    _check_rectangle(mask, rows, keys)
    counts = torch.empty(keys[1] - keys[0], dtype=torch.int64, device="cpu")
    call("oarlock_mask_visible_per_key", ctypes.byref(mask), index, *rows, *keys, counts.data_ptr())
    return counts


def mask_row_spans(bounds: Tensor, *, causal: bool, seqlen_q: int) -> tuple[Tensor, Tensor]:
    """First visible key of each row, and one past the last; both 0 for a row that sees nothing.

    Args: as :func:`mask_visible_per_row`.

    Returns:
        two int64 [M, Sq].
    """
    mask = column_mask(bounds, causal, seqlen_q)
    first = torch.empty(bounds.shape[0], seqlen_q, dtype=torch.int64, device="cpu")
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
    mask = column_mask(bounds, causal, seqlen_q)
    _check_rectangle(mask, rows, keys)
    bias = torch.empty(rows[1] - rows[0], keys[1] - keys[0], dtype=torch.float32, device="cpu")
    call("oarlock_mask_bias", ctypes.byref(mask), index, *rows, *keys, bias.data_ptr())
    return bias
