"""`paddle.nn.functional.flash_attention`: attention without the matrix of weights, through `oarlock.attention`.

B batch, S sequence, H heads, Hk heads of keys, G = H / Hk, D head size, N documents.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from oarlock.attention import flashmask_attention as _flashmask
from oarlock.attention import flashmask_attention_varlen as _varlen
from oarlock.paddle.declare import api, exports
from oarlock.paddle.dtypes import as_number
from oarlock.paddle.nn.functional.extents import AT as ABOVE

AT = f"{ABOVE}.flash_attention"


def _weights(query: Tensor, key: Tensor, lse: Tensor, scale: float, causal: bool) -> Tensor:
    """The softmax [B, H, S, Sk] from its log-sum-exp."""
    key = key.repeat_interleave(query.shape[2] // key.shape[2], 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key).to(lse.dtype) * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(hidden.triu(1 + scores.shape[-1] - scores.shape[-2]), float("-inf"))
    return torch.exp(scores - lse.unsqueeze(-1))


@api(at=AT, out=False)
def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    return_softmax: bool = False,
    *,
    fixed_seed_offset: Tensor | None = None,
    rng_name: str = "",
    training: bool = True,
    softmax_scale: float | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`softmax(query·keyᵀ·softmax_scale)·value`, with causal rows aligned to the last key.

    Args:
        query: [B, S, H, D].
        key: [B, Sk, Hk, D].
        value: [B, Sk, Hk, D].
        dropout: probability with which a weight becomes 0 while training.
        return_softmax: also return the weights [B, H, S, Sk], before the dropout.

    Returns:
        ([B, S, H, D], weights or None).
    """
    scale = query.shape[-1] ** -0.5 if softmax_scale is None else float(softmax_scale)
    out, lse = _flashmask(
        query,
        key,
        value,
        dropout=dropout,
        causal=causal,
        return_softmax_lse=True,
        fixed_seed_offset=fixed_seed_offset,
        rng_name=rng_name,
        training=training,
        softmax_scale=scale,
    )
    return out, _weights(query, key, lse, scale, causal).to(query.dtype) if return_softmax else None


def _unpacked(qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[..., G + 2, Hk, D] as query [..., G·Hk, D], key and value [..., Hk, D]."""
    return qkv[..., :-2, :, :].flatten(-3, -2), qkv[..., -2, :, :], qkv[..., -1, :, :]


@api(f"{ABOVE}.flash_attn_qkvpacked", at=AT, out=False)
def flash_attn_qkvpacked(
    qkv: Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    return_softmax: bool = False,
    *,
    fixed_seed_offset: Tensor | None = None,
    rng_name: str = "",
    training: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """`flash_attention` of query, key and value in one tensor [B, S, G + 2, Hk, D]."""
    return flash_attention(
        *_unpacked(qkv),
        dropout,
        causal,
        return_softmax,
        fixed_seed_offset=fixed_seed_offset,
        rng_name=rng_name,
        training=training,
    )


def _documents(
    query: Tensor, key: Tensor, value: Tensor, cu_q: Tensor, cu_k: Tensor, return_softmax: bool, **keywords: Any
) -> Any:
    if return_softmax:
        raise ValueError("the softmax of packed documents is not kept; pass return_softmax=False")
    return _varlen(query, key, value, cu_q, cu_k, **keywords)


@api(at=AT, out=False)
def flash_attn_unpadded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    scale: float,
    dropout: float = 0.0,
    causal: bool = False,
    return_softmax: bool = False,
    fixed_seed_offset: Tensor | None = None,
    rng_name: str = "",
    training: bool = True,
) -> tuple[Tensor, None]:
    """Attention inside each of N documents that are packed end to end.

    Args:
        query: [total, H, D].
        key: [total of keys, Hk, D].
        value: as `key`.
        cu_seqlens_q: int32 [N + 1], where documents begin, and the total.
        max_seqlen_q: not needed here.
        scale: factor on the scores.

    Returns:
        ([total, H, D], None).

    Raises:
        ValueError: `return_softmax`, which is not kept.
    """
    options = {"dropout": dropout, "fixed_seed_offset": fixed_seed_offset, "rng_name": rng_name, "training": training}
    made = _documents(
        query,
        key,
        value,
        cu_seqlens_q,
        cu_seqlens_k,
        return_softmax,
        causal=causal,
        softmax_scale=float(as_number(scale)),
        **options,
    )
    return made, None


@api(f"{ABOVE}.flash_attn_varlen_qkvpacked", at=AT, out=False)
def flash_attn_varlen_qkvpacked(
    qkv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    scale: float,
    dropout: float = 0.0,
    causal: bool = False,
    return_softmax: bool = False,
    fixed_seed_offset: Tensor | None = None,
    rng_name: str = "",
    varlen_padded: bool = True,
    training: bool = True,
) -> tuple[Tensor, None]:
    """`flash_attn_unpadded` of one tensor [total, G + 2, Hk, D].

    With `varlen_padded` document i begins at row `i·max_seqlen_q`; the rows after its end give 0.
    """
    rows = None
    packed = qkv
    if varlen_padded:
        lengths, longest = cu_seqlens_q.diff(), int(as_number(max_seqlen_q))
        inside = torch.arange(longest, device=qkv.device) < lengths.to(qkv.device)[:, None]
        rows = torch.nonzero(inside.flatten())[:, 0]
        packed = qkv[rows]
    made, _ = flash_attn_unpadded(
        *_unpacked(packed),
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        scale,
        dropout,
        causal,
        return_softmax,
        fixed_seed_offset,
        rng_name,
        training,
    )
    return (made if rows is None else made.new_zeros(len(qkv), *made.shape[1:]).index_copy(0, rows, made)), None


@api(f"flash_attention_v3_varlen {ABOVE}.flash_attention_v3_varlen", at=AT, out=False)
def flash_attn_varlen_func(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> tuple[Tensor, Tensor]:
    """Attention inside each of N documents that are packed end to end, with its log-sum-exp.

    `num_splits`, `pack_gqa` and `sm_margin` tune a GPU kernel and change no result.

    Args:
        query: [total, H, D].
        key: [total of keys, Hk, D].
        window_size: keys seen before a row's own position (-1: all); only with `causal`, where the right one is 0.

    Returns:
        ([total, H, D], log-sum-exp [H, total]).

    Raises:
        ValueError: an option of the FP8 or decoding kernels, or a window without `causal`.
    """
    given = {"seqused_q": seqused_q, "seqused_k": seqused_k, "qv": qv, "softcap": softcap or None}
    given |= {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    refused = [name for name, option in given.items() if option is not None]
    if refused:
        raise ValueError(f"flash_attn_varlen_func does not take {', '.join(refused)}")
    left = int(window_size[0])
    if not causal and tuple(window_size) != (-1, -1):
        raise ValueError(f"window_size {tuple(window_size)} needs causal=True")
    out, lse = _varlen(
        query,
        key,
        value,
        cu_seqlens_q,
        cu_seqlens_k,
        causal=causal,
        window=left + 1 if left >= 0 else None,
        return_softmax_lse=True,
        softmax_scale=softmax_scale,
    )
    return out, lse


@api(f"{ABOVE}.flashmask_attention", at=AT, out=False)
def flashmask_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    startend_row_indices: Tensor | None = None,
    *,
    dropout: float = 0.0,
    causal: bool = False,
    window_size: int | tuple[int, int] | None = None,
    return_softmax_lse: bool = False,
    return_seed_offset: bool = False,
    fixed_seed_offset: Tensor | None = None,
    rng_name: str = "",
    training: bool = True,
    softmax_scale: float | None = None,
    block_mask: Tensor | None = None,
) -> Any:
    """Attention whose mask is given by the rows that each key hides from: `oarlock.attention.flashmask_attention`.

    Args:
        query: [B, S, H, D].
        key: [B, Sk, Hk, D].
        value: as `key`.
        startend_row_indices: int32 [B, 1 or Hk or H, Sk, n]. Causal: n 1 (rows from it on are hidden) or 2 (from, to);
            else n 2 (lower from, upper to) or 4 (lower from, to, upper from, to).
        window_size: keys seen before and after a row's own position; without `startend_row_indices`.
        block_mask: int32 [B, heads, ceil(S / 128), ceil(Sk / 128)], 0 hides a block.

    Returns:
        [B, S, H, D], or the list [out, log-sum-exp [B, H, S], seed and offset] of what was asked for.
    """
    return _flashmask(
        query,
        key,
        value,
        startend_row_indices,
        dropout=dropout,
        causal=causal,
        window_size=window_size,
        return_softmax_lse=return_softmax_lse,
        return_seed_offset=return_seed_offset,
        fixed_seed_offset=fixed_seed_offset,
        rng_name=rng_name,
        training=training,
        softmax_scale=softmax_scale,
        block_mask=block_mask,
    )


@api(at=AT)
def calc_reduced_attention_scores(query: Tensor, key: Tensor, softmax_lse: Tensor) -> Tensor:
    """How much weight each key gets from all rows together: the softmax summed over them.

    Args:
        query: [B, S, H, D].
        key: [B, Sk, Hk, D].
        softmax_lse: [B, H, S] or longer, from the attention.

    Returns:
        float32 [B, H, 1, Sk].
    """
    weights = _weights(query, key, softmax_lse[..., : query.shape[1]], query.shape[-1] ** -0.5, False)
    return weights.sum(-2, keepdim=True).float()


@api(f"{ABOVE}.sdp_kernel", at=AT, out=False)
@contextmanager
def sdp_kernel(
    enable_math: bool = False, enable_flash: bool = True, enable_mem_efficient: bool = True
) -> Iterator[None]:
    """Which kernels `scaled_dot_product_attention` may take inside the block.

    Raises:
        ValueError: none of them.
    """
    kinds = {
        SDPBackend.MATH: enable_math,
        SDPBackend.FLASH_ATTENTION: enable_flash,
        SDPBackend.EFFICIENT_ATTENTION: enable_mem_efficient,
    }
    chosen = [kind for kind, is_on in kinds.items() if is_on]
    if not chosen:
        raise ValueError("at least one kernel must be enabled")
    with sdpa_kernel(chosen):
        yield


@api(at=ABOVE)
def sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_csr_offset: Tensor,
    sparse_csr_columns: Tensor,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
) -> Tensor:
    """Attention over the pairs that a compressed matrix names.

    Args:
        query: [B, H, S, D]; key and value alike.
        sparse_csr_offset: int32 [B, H, S + 1], where the columns of each row begin.
        sparse_csr_columns: int32 [B, H, pairs], the keys of the rows one after the other.
        key_padding_mask: [B, S], 0 hides a key.
        attn_mask: [S, S], 0 hides a pair.

    Returns:
        [B, H, S, D]; 0 for a row that sees no key.
    """
    batch, heads, length, _ = query.shape
    counts = sparse_csr_offset.long().diff(dim=-1)
    seen = torch.zeros(batch, heads, length, length, dtype=torch.bool, device=query.device)
    rows = torch.arange(length, device=query.device)
    for b in range(batch):
        for h in range(heads):
            row = rows.repeat_interleave(counts[b, h])
            seen[b, h, row, sparse_csr_columns[b, h, : len(row)].long()] = True
    if key_padding_mask is not None:
        seen &= (key_padding_mask != 0)[:, None, None]
    if attn_mask is not None:
        seen &= attn_mask != 0
    scores = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).masked_fill(~seen, float("-inf"))
    weights = torch.where(seen.any(-1, keepdim=True), scores, 0.0).softmax(-1) * seen
    return weights @ value


globals().update(exports(AT))
