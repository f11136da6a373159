"""Masks that several calls share, because the plans of the backends are kept on them."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from oarlock.attention.masks import ColumnMask

_KEPT_MASKS = 8
_recent: list[ColumnMask] = []


@functools.lru_cache(maxsize=32)
def implied_mask(
    causal: bool, window: tuple[int, int] | None, seqlen_q: int, seqlen_k: int, device: torch.device
) -> ColumnMask:
    """The mask of a call without one; shared by the layers of a model."""
    if window is not None:
        left, right = window
        return ColumnMask.sliding_window(seqlen_q, seqlen_k, left=left, right=0 if causal else right, device=device)
    make = ColumnMask.plain_causal if causal else ColumnMask.full
    return make(seqlen_q, seqlen_k, device=device)


@functools.lru_cache(maxsize=_KEPT_MASKS)
def document_mask(
    cu_seqlens_q: tuple[int, ...],
    cu_seqlens_k: tuple[int, ...],
    causal: bool,
    window: int | None,
    device: torch.device,
) -> ColumnMask:
    """The mask of packed documents."""
    return ColumnMask.from_cu_seqlens(cu_seqlens_q, cu_seqlens_k, causal=causal, window=window, device=device)


def mask_of(bounds: Tensor, causal: bool, seqlen_q: int) -> ColumnMask:
    """The mask of a tensor of bounds; equal contents that were seen lately share one.

    Contents are compared, not identities: comparing costs microseconds, and the owner may write to the tensor.
    """
    if bounds.device.type != "cpu":
        return ColumnMask(bounds, causal, seqlen_q)  # comparing would wait for the device
    for place, mask in enumerate(_recent):
        if mask.causal == causal and mask.seqlen_q == seqlen_q and torch.equal(mask.bounds, bounds):
            if place:
                _recent.insert(0, _recent.pop(place))
            return mask
    mask = ColumnMask(bounds.detach().clone(), causal, seqlen_q)
    _recent.insert(0, mask)
    del _recent[_KEPT_MASKS:]
    return mask
