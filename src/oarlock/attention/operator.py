"""The attention as one differentiable operation: the choice of a backend, the sink, and the gradient.

Legend: B batch, Sq query rows, Sk keys, Hq/Hk query and key heads, D and Dv head dims of Q/K and V.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from oarlock import providers
from oarlock.attention import (
    backends,  # noqa: F401 (registers them)
    sink,
)
from oarlock.attention.request import BACKWARD, OP, AttentionRequest, Options, applies_sink

DECODING_ROWS = 16
"""Up to so many rows a call counts as decoding."""

ONCE = (
    "flashmask_attention cannot be differentiated twice; for gradients of gradients write the attention in plain torch "
    "operations with mask.to_dense()"
)

_NO_FORWARD_MODE = (
    "flashmask_attention has no forward-mode derivative; use reverse mode (torch.autograd.grad, torch.func.vjp)"
)
_NO_VMAP = (
    "flashmask_attention cannot run under torch.vmap (nor in a jacobian with vectorize=True); put the mapped dimension "
    "into the batch, or loop over it"
)


def attend(
    query: Tensor, key: Tensor, value: Tensor, sink_H: Tensor | None, options: Options, backend: str
) -> tuple[Tensor, Tensor]:
    """out [B, Sq, Hq, Dv] and lse [B, Hq, Sq], differentiable; the arguments are checked, and the sink is apart."""
    tensors = (query, key, value, sink_H)
    in_transform = _in_transform()
    if in_transform or (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)):
        attention = _TransformedAttention if in_transform else _Attention
        out, lse, _ = attention.apply(*tensors, options, backend)  # type: ignore[misc]
        return out, lse
    out, lse = forward(query, key, value, with_sink(options, sink_H, query), backend)
    return out, lse if sink_H is None else sink.include(lse, sink_H.to(lse.dtype))


def with_sink(options: Options, sink_H: Tensor | None, query: Tensor) -> Options:
    """The options with a sink in the dtype of lse."""
    if sink_H is None:
        return options
    return replace(options, sink=sink_H.detach().to(torch.promote_types(query.dtype, torch.float32)))


def forward(query: Tensor, key: Tensor, value: Tensor, options: Options, backend: str) -> tuple[Tensor, Tensor]:
    """out with the sink, lse without."""
    provider = _select(OP, _request(query, value, options), backend)
    if options.sink is None or applies_sink(provider.function):
        return provider.function(query, key, value, options)
    out, lse = provider.function(query, key, value, replace(options, sink=None))
    return sink.rescale(out, lse, options.sink), lse


def backward(
    grad_out: Tensor | None,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    options: Options,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of query, key, value and sink; ``lse`` is without the sink, ``grad_lse`` belongs to the one with."""
    grad_sink = None
    if options.sink is not None:
        grad_sink = sink.gradient(grad_out, grad_lse, out, lse, options.sink)
        lse = sink.include(lse, options.sink).masked_fill(lse == sink.BLIND, sink.BLIND)
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    # Where a forward has no backward of its own, any other continues from its out and lse.
    has_own = any(p.name == backend for p in providers.providers(BACKWARD))
    provider = _select(BACKWARD, _request(query, value, options), backend if has_own else "auto")
    return *provider.function(grad_out, grad_lse, query, key, value, out, lse, options), grad_sink


def _request(query: Tensor, value: Tensor, options: Options) -> AttentionRequest:
    return AttentionRequest(
        query.device,
        query.dtype,
        has_block_mask=options.block_mask is not None,
        has_dropout=options.dropout is not None,
        is_decoding=query.shape[1] <= DECODING_ROWS,
        head_dim=query.shape[3],
        value_dim=value.shape[3],
        deterministic=options.deterministic,
    )


def _select(op: str, request: AttentionRequest, backend: str) -> providers.Provider:
    provider = _choose(op, request, backend)
    providers.tell(provider)
    return provider


@functools.lru_cache(maxsize=256)
def _choose(op: str, request: AttentionRequest, backend: str) -> providers.Provider:
    provider = providers.choose(op, request, backend)
    if backend == "auto" and provider.name == "reference":
        what = [
            name for name, is_so in (("block_mask", request.has_block_mask), ("dropout", request.has_dropout)) if is_so
        ]
        warnings.warn(
            f"flashmask_attention falls back to the dense reference ({request.dtype} on {request.device}"
            f"{', with ' + ' and '.join(what) if what else ''}): it computes and stores all Sq x Sk pairs. "
            'Pass backend="reference" to accept this silently; providers.explain says why no other backend applies.',
            stacklevel=5,
        )
    return provider


# ---- autograd --------------------------------------------------------------------------------------------------------

# Private; without these a transform that is refused fails in torch's words.
_in_transform: Any = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
_is_batched: Any = getattr(getattr(torch._C, "_functorch", None), "is_legacy_batchedtensor", lambda x: False)


def refuse_forward_mode(*tensors: Tensor | None) -> None:
    """Raises if one of them carries a tangent, which a kernel would drop unseen."""
    if getattr(forward_ad, "_current_level", 0) >= 0 and any(
        x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors
    ):
        raise NotImplementedError(_NO_FORWARD_MODE)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, sink_H: Tensor | None, options: Options, backend: str
) -> tuple[Tensor, Tensor, Tensor | None]:
    """out, lse, and the lse without the sink if there is one."""
    options = with_sink(options, sink_H, query)
    out, lse = forward(query, key, value, options, backend)
    return (out, lse, None) if options.sink is None else (out, sink.include(lse, options.sink), lse)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor | None]) -> None:
    query, key, value, sink_H, ctx.options, ctx.backend = inputs
    out, lse, lse_without_sink = output
    if lse_without_sink is not None:
        ctx.mark_non_differentiable(lse_without_sink)
        lse = lse_without_sink
    ctx.save_for_backward(query, key, value, sink_H, out, lse)
    ctx.set_materialize_grads(False)


def _differentiate(
    grad_out: Tensor | None,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sink_H: Tensor | None,
    out: Tensor,
    lse: Tensor,
    options: Options,
    backend: str,
) -> tuple[Tensor | None, ...]:
    options = with_sink(options, sink_H, query)
    *of_inputs, of_sink = backward(grad_out, grad_lse, query, key, value, out, lse, options, backend)
    return *of_inputs, None if sink_H is None or of_sink is None else of_sink.to(sink_H.dtype)


class _Once(torch.autograd.Function):
    """The transforms that the functions below refuse."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        raise NotImplementedError(_NO_VMAP)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise NotImplementedError(_NO_FORWARD_MODE)


class _Attention(_Once):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        output = _attend(*inputs)
        _keep(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None, _: None) -> Any:  # type: ignore[override]
        if grad_out is None and grad_lse is None:
            return (None,) * 6
        if any(x is not None and _is_batched(x) for x in (grad_out, grad_lse)):
            raise NotImplementedError(_NO_VMAP)
        gradient = _TransformedGradient if _in_transform() else _Gradient
        return *gradient.apply(grad_out, grad_lse, *ctx.saved_tensors, ctx.options, ctx.backend), None, None  # type: ignore[misc]


class _Gradient(_Once):
    """The backward as a function of its own, so that a second differentiation is answered in words."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor | None, ...]:
        return _differentiate(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # type: ignore[override]
        raise NotImplementedError(ONCE)


# The form that torch.func asks for; each call of it costs 0.1 ms more.


class _TransformedAttention(_Attention):
    forward = staticmethod(_attend)  # type: ignore[assignment]
    setup_context = staticmethod(_keep)


class _TransformedGradient(_Gradient):
    forward = staticmethod(_differentiate)  # type: ignore[assignment]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass
