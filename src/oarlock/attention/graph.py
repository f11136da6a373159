"""The attention's face to torch.compile and torch.export: one node of a graph, with its gradient as another.

Eager calls go straight to :mod:`oarlock.attention.operator`. Under a compiler, and wherever tensors are not plain (fake
tensors, dispatch modes), the same code runs as ``torch.ops.oarlock.flashmask_attention``. A node takes tensors and
numbers only, so a mask comes as its bounds, or as what ``causal`` and ``window`` imply.

Legend: B batch, Sq query rows, Sk keys, Hq/Hk query and key heads, D and Dv head dims of Q/K and V.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oarlock.attention import operator, sink
from oarlock.attention.dropout import Dropout
from oarlock.attention.mask_cache import implied_mask, mask_of
from oarlock.attention.request import Options


def must_dispatch(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether someone watches the operations: a compiler, a dispatch mode, or a subclass of Tensor."""
    if torch.compiler.is_compiling() or _num_dispatch_modes():
        return True
    return not _PLAIN.issuperset((type(query), type(key), type(value)))


_PLAIN = frozenset((Tensor, torch.nn.Parameter))
# Private; without it only compilers and subclasses are noticed.
_num_dispatch_modes: Any = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)


def attend_in_graph(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sink_H: Tensor | None,
    bounds: Tensor | None,
    causal: bool,
    window: tuple[int, int] | None,
    scale: float,
    block_mask: Tensor | None,
    dropout: float,
    seed_offset: Tensor | None,
    deterministic: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """:func:`oarlock.attention.operator.attend` as one node."""
    geometry = [int(causal), *(window or (-1, -1))]
    rest = (bounds, geometry, scale, block_mask, dropout, seed_offset, deterministic, backend)
    out, lse, _ = _op(query, key, value, sink_H, *rest)
    return out, lse


def _options(
    query: Tensor,
    key: Tensor,
    sink_H: Tensor | None,
    bounds: Tensor | None,
    geometry: list[int],
    scale: float,
    block_mask: Tensor | None,
    dropout: float,
    seed_offset: Tensor | None,
    deterministic: bool,
) -> Options:
    causal, left, right = geometry
    if bounds is not None:
        mask = mask_of(bounds, bool(causal), query.shape[1])
    else:
        window = None if left < 0 else (left, right)
        mask = implied_mask(bool(causal), window, query.shape[1], key.shape[1], query.device)
    drop = None if seed_offset is None else Dropout(dropout, *seed_offset.tolist())
    return operator.with_sink(Options(mask, scale, block_mask, drop, deterministic), sink_H, query)


@torch.library.custom_op("oarlock::flashmask_attention", mutates_args=())
def _op(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sink_H: Tensor | None,
    bounds: Tensor | None,
    geometry: list[int],
    scale: float,
    block_mask: Tensor | None,
    dropout: float,
    seed_offset: Tensor | None,
    deterministic: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """out, lse, and for the backward the lse without the sink; empty if there is none."""
    options = _options(query, key, sink_H, bounds, geometry, scale, block_mask, dropout, seed_offset, deterministic)
    out, lse = operator.forward(query, key, value, options, backend)
    out, lse = out.contiguous(), lse.contiguous()
    if options.sink is None:
        return out, lse, lse.new_empty(0)
    return out, sink.include(lse, options.sink), lse


@_op.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, sink_H: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    batch, seqlen_q, num_heads, _ = query.shape
    out = query.new_empty((batch, seqlen_q, num_heads, value.shape[3]))
    lse = query.new_empty((batch, num_heads, seqlen_q), dtype=torch.promote_types(query.dtype, torch.float32))
    return out, lse, lse.new_empty(0) if sink_H is None else torch.empty_like(lse)


@torch.library.custom_op("oarlock::flashmask_attention_backward", mutates_args=())
def _backward_op(
    grad_out: Tensor | None,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    sink_H: Tensor | None,
    bounds: Tensor | None,
    geometry: list[int],
    scale: float,
    block_mask: Tensor | None,
    dropout: float,
    seed_offset: Tensor | None,
    deterministic: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv and dsink; empty if there is none."""
    options = _options(query, key, sink_H, bounds, geometry, scale, block_mask, dropout, seed_offset, deterministic)
    *gradients, dsink = operator.backward(grad_out, grad_lse, query, key, value, out, lse, options, backend)
    dq, dk, dv = (x.contiguous() for x in gradients)
    if sink_H is None or dsink is None:
        return dq, dk, dv, query.new_empty(0)
    return dq, dk, dv, dsink.to(sink_H.dtype, copy=True)


@_backward_op.register_fake
def _(
    grad_out: Tensor | None,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    sink_H: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, ...]:
    dsink = query.new_empty(0) if sink_H is None else sink_H.new_empty(sink_H.shape)
    return *(x.new_empty(x.shape) for x in (query, key, value)), dsink


def _setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
    query, key, value, sink_H, bounds, geometry, scale, block_mask, dropout, seed_offset, *rest = inputs
    out, lse, lse_without_sink = output
    kept_lse = lse if sink_H is None else lse_without_sink
    ctx.save_for_backward(query, key, value, out, kept_lse, sink_H, bounds, block_mask, seed_offset)
    ctx.options = geometry, scale, dropout, rest
    ctx.set_materialize_grads(False)


def _op_backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    if grad_out is None and grad_lse is None:
        return (None,) * 12
    *saved, sink_H, bounds, block_mask, seed_offset = ctx.saved_tensors
    geometry, scale, dropout, rest = ctx.options
    options = (bounds, geometry, scale, block_mask, dropout, seed_offset, *rest)
    *gradients, dsink = _backward_op(grad_out, grad_lse, *saved, sink_H, *options)
    return *gradients, None if sink_H is None else dsink, *(None,) * 8


def _refuse_second(ctx: Any, *grads: Tensor) -> None:
    raise NotImplementedError(operator.ONCE)


_op.register_autograd(_op_backward, setup_context=_setup_context)
_backward_op.register_autograd(_refuse_second)
