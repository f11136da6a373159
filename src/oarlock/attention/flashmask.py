"""FlashMask attention for plain tensors, with Paddle's argument names and order.

Legend: B batch, Sq query rows, Sk keys, Hq/Hk query and key heads, Hm mask heads, D and Dv head dims of Q/K and V.
"""

from __future__ import annotations

import functools
import warnings

import torch
from torch import Tensor

from oarlock import providers
from oarlock.attention import backends  # noqa: F401 (registers them)
from oarlock.attention.masks import ColumnMask
from oarlock.attention.request import OP, AttentionRequest

BLOCK_MASK_SIZE = 128


def flashmask_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    startend_row_indices: Tensor | ColumnMask | None = None,
    *,
    dropout: float = 0.0,
    causal: bool = False,
    window_size: int | tuple[int, int] | None = None,
    return_softmax_lse: bool = False,
    return_seed_offset: bool = False,
    fixed_seed_offset: Tensor | None = None,
    rng_name: str = "",
    training: bool = True,
    name: str | None = None,
    softmax_scale: float | None = None,
    block_mask: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    deterministic: bool | None = None,
    backend: str = "auto",
) -> Tensor | list[Tensor]:
    """Attention under a column-wise sparse mask: ``softmax(softmax_scale * Q K^T + mask) V``.

    Args:
        query: [B, Sq, Hq, D], any float dtype that the backend takes.
        key: [B, Sk, Hk, D]; Hq must be a multiple of Hk (query head h reads key head h // (Hq / Hk)).
        value: [B, Sk, Hk, Dv].
        startend_row_indices: the mask: a :class:`ColumnMask`, or integers [B, Hm, Sk, n] as described there, with Hm
            one of 1, Hk, Hq. A batch of 1 holds for every batch row. None: no mask besides ``causal`` and
            ``window_size``.
        dropout: only 0 is supported while training.
        causal: hide keys j > i + Sk - Sq (bottom-right aligned). A ColumnMask brings its own.
        window_size: (left, right), or one int for both: row i sees that many keys before and after its own position
            i + Sk - Sq; with ``causal`` none after. Only without a mask.
        return_softmax_lse: also return the log-sum-exp.
        return_seed_offset, fixed_seed_offset, rng_name: belong to dropout, not supported.
        training: False switches dropout off.
        name: ignored, accepted for Paddle's sake.
        softmax_scale: default D ** -0.5.
        block_mask: int or bool [B, Hm, ceil(Sq / 128), ceil(Sk / 128)], 0 hides the whole block of 128 x 128 pairs.
            Only with a mask.
        learnable_sink: [Hq], one more logit in each head's softmax that has no value.
        deterministic: accepted; the CPU backends are deterministic for a given number of threads.
        backend: "auto", or a provider's name ("aten", "reference").

    Returns:
        out [B, Sq, Hq, Dv] in the dtype of ``query``; with ``return_softmax_lse`` the list [out, lse], lse [B, Hq, Sq]
        being the natural logarithm, float32 (float64 for float64 inputs). Both are differentiable. A row that sees no
        key has out 0 and lse -inf (the sink's logit, if there is one).

    Raises:
        TypeError, ValueError: arguments that do not fit together, or a backend that does not apply.
        NotImplementedError: dropout and its companions.

    Source: Wang et al., FlashMask, arXiv 2410.01359; ``paddle.nn.functional.flashmask_attention``.
    """
    _refuse_dropout(dropout if training else 0.0, return_seed_offset, fixed_seed_offset, rng_name)
    _check_tensors(query, key, value)
    mask = _resolve_mask(query, key, startend_row_indices, causal, window_size)
    if block_mask is not None:
        if startend_row_indices is None:
            raise ValueError("block_mask needs startend_row_indices; pass ColumnMask.full(...) for no other mask")
        block_mask = _check_block_mask(block_mask, mask, query.shape[0])
    if learnable_sink is not None and learnable_sink.shape != query.shape[2:3]:
        raise ValueError(f"learnable_sink must have shape [{query.shape[2]}], got {list(learnable_sink.shape)}")

    request = AttentionRequest(query.device, query.dtype, has_block_mask=block_mask is not None)
    provider = providers.select(OP, request, backend)
    if backend == "auto" and provider.name == "reference":
        _warn_dense(query.device.type, block_mask is not None)
    scale = query.shape[-1] ** -0.5 if softmax_scale is None else float(softmax_scale)
    out, lse = provider.function(query, key, value, mask, scale=scale, block_mask=block_mask)
    if learnable_sink is not None:
        out, lse = _add_sink(out, lse, learnable_sink)
    return [out, lse] if return_softmax_lse else out


def _refuse_dropout(dropout: float, return_seed_offset: bool, fixed_seed_offset: Tensor | None, rng_name: str) -> None:
    if dropout != 0.0:
        raise NotImplementedError(f"dropout={dropout} is not supported; pass dropout=0.0 (or training=False)")
    for argument, is_given in (
        ("return_seed_offset", return_seed_offset),
        ("fixed_seed_offset", fixed_seed_offset is not None),
        ("rng_name", rng_name != ""),
    ):
        if is_given:
            raise NotImplementedError(f"{argument} belongs to dropout, which is not supported; leave it out")


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    for argument, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{argument} must be a torch.Tensor, got {type(x).__name__}")
        if x.dim() != 4:
            raise ValueError(f"{argument} must have shape [batch, sequence, heads, head_dim], got {list(x.shape)}")
        if x.dtype != query.dtype or x.device != query.device:
            raise TypeError(
                f"{argument} is {x.dtype} on {x.device}, query is {query.dtype} on {query.device}; they must agree"
            )
    shapes = f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        raise ValueError(f"batch sizes differ: {shapes}")
    if key.shape[1:3] != value.shape[1:3]:
        raise ValueError(f"key and value differ in sequence length or heads: {shapes}")
    if query.shape[3] != key.shape[3]:
        raise ValueError(f"query and key differ in head_dim: {shapes}")
    if key.shape[2] == 0 or query.shape[2] % key.shape[2]:
        raise ValueError(f"the {query.shape[2]} query heads must be a multiple of the {key.shape[2]} key heads")


def _resolve_mask(
    query: Tensor,
    key: Tensor,
    given: Tensor | ColumnMask | None,
    causal: bool,
    window_size: int | tuple[int, int] | None,
) -> ColumnMask:
    seqlen_q, seqlen_k = query.shape[1], key.shape[1]
    if given is None:
        left, right = (window_size, window_size) if isinstance(window_size, int) else window_size or (None, None)
        return _implied_mask(causal, left, right, seqlen_q, seqlen_k, query.device)
    if window_size is not None:
        raise ValueError("window_size and startend_row_indices exclude each other; put the window into the mask")
    if isinstance(given, ColumnMask):
        mask = given
        if causal and not mask.causal:
            raise ValueError("causal=True contradicts the ColumnMask, which is not causal; leave the argument out")
    else:
        mask = ColumnMask(given, causal, seqlen_q)
    if (mask.seqlen_q, mask.seqlen_k) != (seqlen_q, seqlen_k):
        raise ValueError(
            f"the mask is for {mask.seqlen_q} rows and {mask.seqlen_k} keys, "
            f"query has {seqlen_q} rows and key {seqlen_k}"
        )
    if mask.batch not in (1, query.shape[0]):
        raise ValueError(f"the mask has batch size {mask.batch}, query has {query.shape[0]}")
    if mask.num_heads not in (1, key.shape[2], query.shape[2]):
        raise ValueError(
            f"the mask has {mask.num_heads} heads; allowed are 1, {key.shape[2]} (key) and {query.shape[2]} (query)"
        )
    if mask.device != query.device:
        raise ValueError(f"the mask is on {mask.device}, query on {query.device}; move it once with mask.to(device)")
    return mask


@functools.lru_cache(maxsize=32)
def _implied_mask(
    causal: bool, left: int | None, right: int | None, seqlen_q: int, seqlen_k: int, device: torch.device
) -> ColumnMask:
    """The mask of a call without one; shared by the layers of a model, as its plan is kept on it."""
    if left is not None and right is not None:
        window = {"left": left, "right": 0 if causal else right, "device": device}
        return ColumnMask.sliding_window(seqlen_q, seqlen_k, **window)
    make = ColumnMask.plain_causal if causal else ColumnMask.full
    return make(seqlen_q, seqlen_k, device=device)


def _check_block_mask(block_mask: Tensor, mask: ColumnMask, batch: int) -> Tensor:
    num_blocks = [-(-length // BLOCK_MASK_SIZE) for length in (mask.seqlen_q, mask.seqlen_k)]
    wanted = [batch, mask.num_heads, *num_blocks]
    if list(block_mask.shape) not in (wanted, [1, *wanted[1:]]):
        raise ValueError(f"block_mask must have shape {wanted} (blocks of 128 x 128), got {list(block_mask.shape)}")
    return block_mask != 0


@functools.cache
def _warn_dense(device_type: str, has_block_mask: bool) -> None:
    reason = "a block_mask" if has_block_mask else f"device {device_type!r}"
    warnings.warn(
        f"flashmask_attention falls back to the dense reference for {reason}: "
        'it computes and stores all Sq x Sk pairs. Pass backend="reference" to accept this silently.',
        stacklevel=3,
    )


def _add_sink(out: Tensor, lse: Tensor, sink_H: Tensor) -> tuple[Tensor, Tensor]:
    """Adds one logit per head to the denominator: L = log(exp(lse) + exp(sink)), out * exp(lse - L)."""
    sink_H1 = sink_H.to(lse.dtype)[:, None]
    is_blind = lse == float("-inf")
    finite_lse = lse.masked_fill(is_blind, 0.0)
    weight_BHQ = torch.sigmoid(finite_lse - sink_H1)
    out = (out * weight_BHQ.transpose(1, 2)[..., None]).to(out.dtype)
    return out, torch.where(is_blind, sink_H1, torch.logaddexp(finite_lse, sink_H1))
