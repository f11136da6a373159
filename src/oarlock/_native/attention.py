"""The fused attention of the core."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from oarlock._native import abi
from oarlock._native.loader import call
from oarlock._native.masks import column_mask
from oarlock._native.tensors import check_tensor

ATTENTION_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""Dtypes that the fused attention takes, with their numbers in the C header."""


@dataclass(frozen=True)
class AttentionOptions:
    """What belongs to a fused attention besides its tensors.

    Args:
        bounds: int32 [M, Sk, n], contiguous, on the CPU: the column masks of the M = mask_batch * mask_heads pairs.
        causal: as :func:`oarlock._native.mask_visible_per_row`.
        mask_batch: 1 or the batch size.
        mask_heads: must divide the number of query heads.
        scale: factor of the scores.
        block_mask: None or bool [1 or batch, mask_heads, ceil(Sq / 128), ceil(Sk / 128)], contiguous; False hides.
        dropout_threshold: unsigned 32-bit, 0 for no dropout.
        dropout_scale: factor of the kept probabilities.
        seed, offset: of the dropout, read as unsigned 64-bit.
        deterministic: the gradients' bits do not depend on the number of threads.
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
    deterministic: bool = False


def _vectors(x_BSHD: Tensor) -> abi.Vectors:
    return abi.Vectors(x_BSHD.data_ptr(), *x_BSHD.stride())


def _attention_call(query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> abi.Attention:
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
    mask = column_mask(options.bounds, options.causal, seqlen_q)
    if mask.seqlen_k != seqlen_k or mask.num_masks != options.mask_batch * options.mask_heads:
        raise ValueError(
            f"bounds must have shape [{options.mask_batch * options.mask_heads}, {seqlen_k}, n], "
            f"got {list(options.bounds.shape)}"
        )
    block_mask, blocks = options.block_mask, (-(-seqlen_q // 128), -(-seqlen_k // 128))
    if block_mask is not None:
        check_tensor(block_mask, "block_mask", dtype=torch.bool, shape=(None, options.mask_heads, *blocks))
    return abi.Attention(
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
        options.deterministic,
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
    lse = torch.empty(query.shape[0], query.shape[2], query.shape[1], dtype=torch.float32, device="cpu")
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
    dq, dk, dv = (make(x.shape, dtype=x.dtype, device=x.device) for x in (query, key, value))
    before = [_vectors(x) for x in (query, key, value, out)]
    after = [_vectors(x) for x in (dq, dk, dv)]
    incoming = _vectors(grad_out)
    call(
        "oarlock_attention_backward",
        *(ctypes.byref(call_), *map(ctypes.byref, before), lse.data_ptr(), ctypes.byref(incoming)),
        *(None if grad_lse is None else grad_lse.data_ptr(), *map(ctypes.byref, after)),
    )
    return dq, dk, dv
