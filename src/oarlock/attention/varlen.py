"""Attention of packed documents without a batch dimension.

Legend: T rows (total_q) or keys (total_k) of all documents, Hq/Hk query and key heads, D and Dv head dims, N documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack, overload

import torch
from torch import Tensor

from oarlock.attention.flashmask import flashmask_attention
from oarlock.attention.graph import must_dispatch
from oarlock.attention.keywords import CommonKeywords
from oarlock.attention.mask_cache import document_mask
from oarlock.attention.masks import ColumnMask


@overload
def flashmask_attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor | Sequence[int],
    cu_seqlens_k: Tensor | Sequence[int] | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    return_softmax_lse: Literal[False] = False,
    return_seed_offset: Literal[False] = False,
    **keywords: Unpack[CommonKeywords],
) -> Tensor: ...
@overload
def flashmask_attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor | Sequence[int],
    cu_seqlens_k: Tensor | Sequence[int] | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    return_softmax_lse: Literal[True],
    return_seed_offset: bool = False,
    **keywords: Unpack[CommonKeywords],
) -> list[Tensor]: ...
@overload
def flashmask_attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor | Sequence[int],
    cu_seqlens_k: Tensor | Sequence[int] | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    return_softmax_lse: bool = False,
    return_seed_offset: Literal[True],
    **keywords: Unpack[CommonKeywords],
) -> list[Tensor]: ...
@overload
def flashmask_attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor | Sequence[int],
    cu_seqlens_k: Tensor | Sequence[int] | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    return_softmax_lse: bool = False,
    return_seed_offset: bool = False,
    **keywords: Unpack[CommonKeywords],
) -> Tensor | list[Tensor]: ...
def flashmask_attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor | Sequence[int],
    cu_seqlens_k: Tensor | Sequence[int] | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    return_softmax_lse: bool = False,
    return_seed_offset: bool = False,
    **keywords: Unpack[CommonKeywords],
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
        return_softmax_lse: also return the log-sum-exp.
        return_seed_offset: also return the seed and offset of the dropout.
        keywords: dropout, softmax_scale, learnable_sink, backend and the others of :func:`flashmask_attention`.

    Returns:
        out [total_q, Hq, Dv], or the list of :func:`flashmask_attention` with lse [Hq, total_q].

    Raises:
        TypeError, ValueError: arguments that do not fit together.
    """
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor) or x.dim() != 3:
            got = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"{name} must be a tensor [total, heads, head_dim], got {got}")
    make_mask = _bounds_in_graph if must_dispatch(query, key, value) else _mask
    mask = make_mask(cu_seqlens_q, cu_seqlens_k, len(query), len(key), causal, window, query.device)
    results = flashmask_attention(
        *(query[None], key[None], value[None], mask),
        return_softmax_lse=return_softmax_lse,
        return_seed_offset=return_seed_offset,
        **keywords,
    )
    if isinstance(results, Tensor):
        return results[0]
    return [x[0] if x.dim() > 1 else x for x in results]  # a seed and offset have no batch


def _mask(
    cu_seqlens_q: Tensor | Sequence[int],
    cu_seqlens_k: Tensor | Sequence[int] | None,
    total_q: int,
    total_k: int,
    causal: bool,
    window: int | None,
    device: torch.device,
) -> ColumnMask:
    """The mask of the documents, after a check."""
    cu_q = _as_tuple(cu_seqlens_q)
    cu_k = cu_q if cu_seqlens_k is None else _as_tuple(cu_seqlens_k)
    for name, cu, total, of in (("q", cu_q, total_q, "query"), ("k", cu_k, total_k, "key")):
        if not cu or cu[-1] != total:
            raise ValueError(f"cu_seqlens_{name} must end with the {total} tokens of {of}, got {list(cu)}")
    return document_mask(cu_q, cu_k, causal, window, device)


def _as_tuple(cu_seqlens: Tensor | Sequence[int]) -> tuple[int, ...]:
    return tuple(cu_seqlens.tolist() if isinstance(cu_seqlens, Tensor) else cu_seqlens)


# A graph must not depend on the lengths, so there the bounds come from a node of their own, in one layout.


def _bounds_in_graph(
    cu_seqlens_q: Tensor | Sequence[int],
    cu_seqlens_k: Tensor | Sequence[int] | None,
    total_q: int,
    total_k: int,
    causal: bool,
    window: int | None,
    device: torch.device,
) -> Tensor:
    cu_q = torch.as_tensor(cu_seqlens_q)
    cu_k = cu_q if cu_seqlens_k is None else torch.as_tensor(cu_seqlens_k)
    return _bounds_op(cu_q, cu_k, total_q, total_k, causal, window, device)


@torch.library.custom_op("oarlock::document_bounds", mutates_args=())
def _bounds_op(
    cu_q: Tensor, cu_k: Tensor, total_q: int, total_k: int, causal: bool, window: int | None, device: torch.device
) -> Tensor:
    mask = _mask(cu_q, cu_k, total_q, total_k, causal, window, device)
    bounds = mask.bounds
    if not mask.causal:
        return bounds.clone()
    own_row = torch.arange(total_k, dtype=torch.int32, device=device)[:, None]
    return torch.cat([bounds, own_row[None, None]], dim=-1)


@_bounds_op.register_fake
def _(
    cu_q: Tensor, cu_k: Tensor, total_q: int, total_k: int, causal: bool, window: int | None, device: torch.device
) -> Tensor:
    return torch.empty((1, 1, total_k, 2), dtype=torch.int32, device=device)
