"""Attention of packed documents without a batch dimension.

Legend: T rows (total_q) or keys (total_k) of all documents, Hq/Hk query and key heads, D and Dv head dims, N documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oarlock.attention.flashmask import flashmask_attention
from oarlock.attention.masks import ColumnMask

_KEPT_MASKS = 8
_recent: dict[tuple, ColumnMask] = {}


def flashmask_attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor | Sequence[int],
    cu_seqlens_k: Tensor | Sequence[int] | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    **options: Any,
) -> Tensor | list[Tensor]:
    """Attention inside each of N documents that are packed end to end.

    Args:
        query: [total_q, Hq, D].
        key: [total_k, Hk, D].
        value: [total_k, Hk, Dv].
        cu_seqlens_q: int [N + 1], where the rows of each document begin: 0, ..., total_q.
        cu_seqlens_k: the same for keys; None: as ``cu_seqlens_q``.
        causal: hide later keys, aligned to the bottom right of each document: its last row sees all its keys.
        window: with ``causal``, see only the last ``window`` keys, the row's own included.
        options: dropout, return_softmax_lse, softmax_scale, learnable_sink, backend and the others of
            :func:`flashmask_attention`.

    Returns:
        out [total_q, Hq, Dv], or the list of :func:`flashmask_attention` with lse [Hq, total_q].

    Raises:
        TypeError, ValueError: arguments that do not fit together.
    """
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor) or x.dim() != 3:
            got = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"{name} must be a tensor [total, heads, head_dim], got {got}")
    cu_q = _as_tuple(cu_seqlens_q)
    cu_k = cu_q if cu_seqlens_k is None else _as_tuple(cu_seqlens_k)
    for name, cu, total, of in (("q", cu_q, len(query), "query"), ("k", cu_k, len(key), "key")):
        if not cu or cu[-1] != total:
            raise ValueError(f"cu_seqlens_{name} must end with the {total} tokens of {of}, got {list(cu)}")
    mask = _mask(cu_q, cu_k, causal, window, query.device)
    results = flashmask_attention(query[None], key[None], value[None], mask, **options)
    if isinstance(results, Tensor):
        return results[0]
    return [x[0] if x.dim() > 1 else x for x in results]


def _as_tuple(cu_seqlens: Tensor | Sequence[int]) -> tuple[int, ...]:
    return tuple(cu_seqlens.tolist() if isinstance(cu_seqlens, Tensor) else cu_seqlens)


def _mask(
    cu_q: tuple[int, ...], cu_k: tuple[int, ...], causal: bool, window: int | None, device: torch.device
) -> ColumnMask:
    """The mask of the documents; the layers of a model share the last few, with their plans."""
    key = (cu_q, cu_k, causal, window, device)
    mask = _recent.pop(key, None)
    if mask is None:
        mask = ColumnMask.from_cu_seqlens(cu_q, cu_k, causal=causal, window=window, device=device)
    _recent[key] = mask
    if len(_recent) > _KEPT_MASKS:
        del _recent[next(iter(_recent))]
    return mask
