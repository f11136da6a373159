"""FlashMask attention for plain tensors, with Paddle's argument names and order.

Legend: B batch, Sq query rows, Sk keys, Hq/Hk query and key heads, Hm mask heads, D and Dv head dims of Q/K and V.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Unpack, overload

import torch
from torch import Tensor

from oarlock.attention import arguments
from oarlock.attention.dropout import Dropout, draw_seed_offset
from oarlock.attention.graph import attend_in_graph, must_dispatch
from oarlock.attention.keywords import Keywords
from oarlock.attention.mask_cache import implied_mask, mask_of
from oarlock.attention.masks import ColumnMask
from oarlock.attention.operator import attend, refuse_forward_mode
from oarlock.attention.request import Options

if TYPE_CHECKING:
    from oarlock.attention.context_parallel import ContextPlan


@overload
def flashmask_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    startend_row_indices: Tensor | ColumnMask | None = None,
    *,
    return_softmax_lse: Literal[False] = False,
    return_seed_offset: Literal[False] = False,
    **keywords: Unpack[Keywords],
) -> Tensor: ...
@overload
def flashmask_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    startend_row_indices: Tensor | ColumnMask | None = None,
    *,
    return_softmax_lse: Literal[True],
    return_seed_offset: bool = False,
    **keywords: Unpack[Keywords],
) -> list[Tensor]: ...
@overload
def flashmask_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    startend_row_indices: Tensor | ColumnMask | None = None,
    *,
    return_softmax_lse: bool = False,
    return_seed_offset: Literal[True],
    **keywords: Unpack[Keywords],
) -> list[Tensor]: ...
@overload
def flashmask_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    startend_row_indices: Tensor | ColumnMask | None = None,
    *,
    return_softmax_lse: bool = False,
    return_seed_offset: bool = False,
    **keywords: Unpack[Keywords],
) -> Tensor | list[Tensor]: ...
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
    plan: ContextPlan | None = None,
) -> Tensor | list[Tensor]:
    """Attention under a column-wise sparse mask: ``softmax(softmax_scale * Q K^T + mask) V``.

    Args:
        query: [B, Sq, Hq, D], any float dtype that the backend takes.
        key: [B, Sk, Hk, D]; Hq must be a multiple of Hk (query head h reads key head h // (Hq / Hk)).
        value: [B, Sk, Hk, Dv].
        startend_row_indices: the mask: a :class:`ColumnMask`, or integers [B, Hm, Sk, n] as described there, with Hm
            one of 1, Hk, Hq. A batch of 1 holds for every batch row. None: no mask besides ``causal`` and
            ``window_size``.
        dropout: probability in [0, 1) with which a weight becomes 0 while training; the others grow by 1 / (1 - p). A
            hash of its position decides (see :mod:`oarlock.attention.dropout`), whose seed is drawn from torch's
            generator: activation checkpointing drops the same weights again.
        causal: hide keys j > i + Sk - Sq (bottom-right aligned). A ColumnMask brings its own.
        window_size: (left, right), or one int for both: row i sees that many keys before and after its own position
            i + Sk - Sq; with ``causal`` none after. Only without a mask.
        return_softmax_lse: also return the log-sum-exp.
        return_seed_offset: also return the seed and offset of the dropout.
        fixed_seed_offset: int64 [2] on the CPU: use these instead of drawing.
        rng_name: draw from this generator (see :func:`oarlock.attention.dropout.name_generator`).
        training: False switches dropout off.
        name: ignored, accepted for Paddle's sake.
        softmax_scale: default D ** -0.5.
        block_mask: int or bool [B, Hm, ceil(Sq / 128), ceil(Sk / 128)], 0 hides the whole block of 128 x 128 pairs.
            Only with a mask.
        learnable_sink: [Hq] of any float dtype, one more logit in each head's softmax that has no value.
        deterministic: equal inputs must give equal bits; None: as ``torch.use_deterministic_algorithms`` says. Without
            it the CPU backends give equal bits for an equal number of threads, with it for any.
        backend: "auto", or a provider's name ("fused", "aten", "reference", ...; ``oarlock doctor`` lists them).
        plan: tensors are this rank's rows of a longer sequence, as the plan shards them, and the mask is that of the
            whole sequence. See :func:`oarlock.attention.context_parallel.attend_context_parallel`; takes neither
            dropout nor ``block_mask``.

    Returns:
        out [B, Sq, Hq, Dv] in the dtype of ``query`` (autocast's dtype where that is on), or a list [out, lse,
        seed_offset] of what was asked for. lse [B, Hq, Sq] is the natural log-sum-exp, float32 (float64 for float64
        inputs), and differentiable as ``out`` is. A row that sees no key has out 0 and lse -inf (the sink's logit, if
        there is one). seed_offset is int64 [2], zeros without dropout.

    Raises:
        TypeError, ValueError: arguments that do not fit together, or a backend that does not apply.
        NotImplementedError: on differentiating twice.

    A NaN or an infinity in a key or value reaches only rows that see it, and in a query only rows that see something.

    Source: Wang et al., FlashMask, arXiv 2410.01359; ``paddle.nn.functional.flashmask_attention``.
    """
    query, key, value = arguments.cast_for_autocast(query, key, value)
    arguments.check_tensors(query, key, value)
    probability = arguments.check_dropout(dropout, fixed_seed_offset, training)
    window = arguments.check_window(window_size)
    seqlen_q, seqlen_k = (query.shape[1], key.shape[1]) if plan is None else (plan.seqlen, plan.seqlen)
    bounds = None
    if startend_row_indices is not None:
        bounds, causal = arguments.check_mask(query, key, startend_row_indices, causal, window, plan)
    if plan is not None:
        arguments.check_plan(bounds, causal, window, block_mask, probability)
    if block_mask is not None:
        if bounds is None:
            raise ValueError("block_mask needs startend_row_indices; pass ColumnMask.full(...) for no other mask")
        block_mask = arguments.check_block_mask(block_mask, bounds, query)
    scale = query.shape[-1] ** -0.5 if softmax_scale is None else float(softmax_scale)
    seed_offset = fixed_seed_offset
    if probability and seed_offset is None:
        seed_offset = draw_seed_offset(rng_name)

    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    if learnable_sink is not None:
        arguments.check_sink(learnable_sink, query)

    refuse_forward_mode(query, key, value, learnable_sink)
    if plan is None and must_dispatch(query, key, value):
        rest = (scale, block_mask, probability, seed_offset if probability else None, deterministic, backend)
        out, lse = attend_in_graph(query, key, value, learnable_sink, bounds, causal, window, *rest)
    else:
        if isinstance(startend_row_indices, ColumnMask):
            mask = startend_row_indices
        elif bounds is not None:
            mask = mask_of(bounds, causal, seqlen_q)
        else:
            mask = implied_mask(causal, window, seqlen_q, seqlen_k, query.device)
        if plan is None:
            drop = Dropout(probability, *seed_offset.tolist()) if probability and seed_offset is not None else None
            options = Options(mask, scale, block_mask, drop, deterministic)
            out, lse = attend(query, key, value, learnable_sink, options, backend)
        else:
            from oarlock.attention.context_parallel import attend_context_parallel

            names = {"softmax_scale": scale, "learnable_sink": learnable_sink, "deterministic": deterministic}
            out, lse = attend_context_parallel(query, key, value, mask, plan, backend=backend, **names)
    results = [out]
    if return_softmax_lse:
        results.append(lse)
    if return_seed_offset:
        results.append(torch.zeros(2, dtype=torch.int64, device="cpu") if seed_offset is None else seed_offset)
    return results if len(results) > 1 else out
