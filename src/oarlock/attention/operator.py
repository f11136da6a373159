"""The attention as one operation: the choice of a backend, its gradient, and its face to torch.compile.

Eager calls go straight to the backend. Under torch.compile, and wherever tensors are not plain (fake tensors, dispatch
modes), the same code runs as ``torch.ops.oarlock.flashmask_attention``, which graphs keep as one node.

Legend: B batch, Sq query rows, Sk keys, Hq/Hk query and key heads, Hm mask heads, D and Dv head dims of Q/K and V.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import Tensor

from oarlock import providers
from oarlock.attention import backends  # noqa: F401 (registers them)
from oarlock.attention.dropout import Dropout
from oarlock.attention.masks import ColumnMask
from oarlock.attention.request import BACKWARD, OP, AttentionRequest

DECODING_ROWS = 16
"""Up to so many rows a call counts as decoding."""

_ONCE = (
    "flashmask_attention cannot be differentiated twice; for gradients of gradients write the attention in plain torch "
    "operations with mask.to_dense()"
)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: ColumnMask,
    scale: float,
    block_mask: Tensor | None,
    dropout: Dropout | None,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """out [B, Sq, Hq, Dv] and lse [B, Hq, Sq], differentiable; the arguments are checked."""
    arguments = (query, key, value, mask, scale, block_mask, dropout, backend)
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        return _Attention.apply(*arguments)  # type: ignore[return-value]
    return _forward(*arguments)


def attend_in_graph(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor | None,
    causal: bool,
    window: tuple[int, int] | None,
    scale: float,
    block_mask: Tensor | None,
    dropout: float,
    seed_offset: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """:func:`attend` as one node of a graph: the mask is its bounds, or what ``causal`` and ``window`` imply."""
    geometry = [int(causal), *(window or (-1, -1))]
    return _op(query, key, value, bounds, geometry, scale, block_mask, dropout, seed_offset, backend)


def must_dispatch(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether someone watches the operations: a compiler, a dispatch mode, or a subclass of Tensor."""
    if torch.compiler.is_compiling() or _num_dispatch_modes():
        return True
    return not _PLAIN.issuperset((type(query), type(key), type(value)))


_PLAIN = frozenset((Tensor, torch.nn.Parameter))
# Private; without it only compilers and subclasses are noticed.
_num_dispatch_modes: Any = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)


# ---- backends --------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _select(op: str, request: AttentionRequest, backend: str) -> providers.Provider:
    provider = providers.select(op, request, backend)
    if backend == "auto" and provider.name == "reference":
        what = [
            name for name, is_so in (("block_mask", request.has_block_mask), ("dropout", request.has_dropout)) if is_so
        ]
        warnings.warn(
            f"flashmask_attention falls back to the dense reference ({request.dtype} on {request.device}"
            f"{', with ' + ' and '.join(what) if what else ''}): it computes and stores all Sq x Sk pairs. "
            'Pass backend="reference" to accept this silently; providers.explain says why no other backend applies.',
            stacklevel=4,
        )
    return provider


def _request(query: Tensor, block_mask: Tensor | None, dropout: Dropout | None) -> AttentionRequest:
    few_rows = query.shape[1] <= DECODING_ROWS
    return AttentionRequest(query.device, query.dtype, block_mask is not None, dropout is not None, few_rows)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: ColumnMask,
    scale: float,
    block_mask: Tensor | None,
    dropout: Dropout | None,
    backend: str,
) -> tuple[Tensor, Tensor]:
    provider = _select(OP, _request(query, block_mask, dropout), backend)
    return provider.function(query, key, value, mask, scale=scale, block_mask=block_mask, dropout=dropout)


def _backward(
    grad_out: Tensor | None,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: ColumnMask,
    scale: float,
    block_mask: Tensor | None,
    dropout: Dropout | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    # Where a forward has no backward of its own, any other continues from its out and lse.
    has_own = any(p.name == backend for p in providers.providers(BACKWARD))
    provider = _select(BACKWARD, _request(query, block_mask, dropout), backend if has_own else "auto")
    arguments = (grad_out, grad_lse, query, key, value, out, lse, mask)
    return provider.function(*arguments, scale=scale, block_mask=block_mask, dropout=dropout)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        out, lse = _forward(query, key, value, *rest)
        ctx.rest = rest
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> Any:  # type: ignore[override]
        if grad_out is None and grad_lse is None:
            return (None,) * 8
        return *_Gradient.apply(ctx.rest, grad_out, grad_lse, *ctx.saved_tensors), *(None,) * 5


class _Gradient(torch.autograd.Function):
    """The backward as a function of its own, so that a second differentiation is answered in words."""

    @staticmethod
    def forward(
        ctx: Any, rest: tuple[Any, ...], grad_out: Tensor | None, grad_lse: Tensor | None, *saved: Tensor
    ) -> Any:
        query, key, value, out, lse = saved
        return _backward(grad_out, grad_lse, query, key, value, out, lse, *rest)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # type: ignore[override]
        raise NotImplementedError(_ONCE)


# ---- the node of a graph ---------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=32)
def implied_mask(
    causal: bool, window: tuple[int, int] | None, seqlen_q: int, seqlen_k: int, device: torch.device
) -> ColumnMask:
    """The mask of a call without one; shared by the layers of a model, as its plan is kept on it."""
    if window is not None:
        left, right = window
        return ColumnMask.sliding_window(seqlen_q, seqlen_k, left=left, right=0 if causal else right, device=device)
    make = ColumnMask.plain_causal if causal else ColumnMask.full
    return make(seqlen_q, seqlen_k, device=device)


_KEPT_MASKS = 8
_recent: list[ColumnMask] = []


def mask_of(bounds: Tensor, causal: bool, seqlen_q: int) -> ColumnMask:
    """The mask of a tensor of bounds; equal contents that were seen lately share one, and so one plan.

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


def _rebuild(
    query: Tensor, key: Tensor, bounds: Tensor | None, geometry: list[int], dropout: float, seed_offset: Tensor | None
) -> tuple[ColumnMask, Dropout | None]:
    causal, left, right = geometry
    if bounds is not None:
        mask = mask_of(bounds, bool(causal), query.shape[1])
    else:
        window = None if left < 0 else (left, right)
        mask = implied_mask(bool(causal), window, query.shape[1], key.shape[1], query.device)
    return mask, None if seed_offset is None else Dropout(dropout, *seed_offset.tolist())


@torch.library.custom_op("oarlock::flashmask_attention", mutates_args=())
def _op(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor | None,
    geometry: list[int],
    scale: float,
    block_mask: Tensor | None,
    dropout: float,
    seed_offset: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor]:
    mask, drop = _rebuild(query, key, bounds, geometry, dropout, seed_offset)
    out, lse = _forward(query, key, value, mask, scale, block_mask, drop, backend)
    return out.contiguous(), lse.contiguous()


@_op.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    batch, seqlen_q, num_heads, _ = query.shape
    out = query.new_empty((batch, seqlen_q, num_heads, value.shape[3]))
    return out, query.new_empty((batch, num_heads, seqlen_q), dtype=torch.promote_types(query.dtype, torch.float32))


@torch.library.custom_op("oarlock::flashmask_attention_backward", mutates_args=())
def _backward_op(
    grad_out: Tensor | None,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    bounds: Tensor | None,
    geometry: list[int],
    scale: float,
    block_mask: Tensor | None,
    dropout: float,
    seed_offset: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    mask, drop = _rebuild(query, key, bounds, geometry, dropout, seed_offset)
    gradients = _backward(*(grad_out, grad_lse, query, key, value, out, lse, mask, scale), *(block_mask, drop, backend))
    dq, dk, dv = (x.contiguous() for x in gradients)
    return dq, dk, dv


@_backward_op.register_fake
def _(grad_out: Any, grad_lse: Any, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in (query, key, value))


def _setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    query, key, value, bounds, geometry, scale, block_mask, dropout, seed_offset, backend = inputs
    ctx.save_for_backward(query, key, value, *output, bounds, block_mask, seed_offset)
    ctx.options = geometry, scale, dropout, backend
    ctx.set_materialize_grads(False)


def _op_backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad_out is None and grad_lse is None:
        return (None,) * 10
    *saved, bounds, block_mask, seed_offset = ctx.saved_tensors
    geometry, scale, dropout, backend = ctx.options
    options = (bounds, geometry, scale, block_mask, dropout, seed_offset, backend)
    return *_backward_op(grad_out, grad_lse, *saved, *options), *(None,) * 7


def _refuse_second(ctx: Any, *grads: Tensor) -> None:
    raise NotImplementedError(_ONCE)


_op.register_autograd(_op_backward, setup_context=_setup_context)
_backward_op.register_autograd(_refuse_second)
