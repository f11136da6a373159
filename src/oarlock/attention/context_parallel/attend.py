"""Attention of a rank's rows, with keys and values of the other ranks where its rows see them.

The rank's own keys are computed while the others' arrive; the two parts are merged by their log-sum-exp. Backwards the
others' keys come first, so that their gradients travel home while those of the own keys are computed.

Legend: B batch, L rows of this rank, Hq/Hk query and key heads, D and Dv head dims of Q/K and V.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.attention import arguments, operator
from oarlock.attention.context_parallel.exchange import KeyExchange
from oarlock.attention.context_parallel.merge import Part, merge, part_gradients
from oarlock.attention.context_parallel.plan import ContextPlan
from oarlock.attention.context_parallel.transport import Group, KeySender
from oarlock.attention.masks import ColumnMask
from oarlock.attention.request import Options

Function = TypeVar("Function", bound=Callable[..., Any])


def _never_compiled(function: Function) -> Function:
    """Plans and collectives stay outside of compiled graphs."""
    return torch.compiler.disable(function)  # type: ignore[return-value]


@_never_compiled
def attend_context_parallel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: ColumnMask,
    plan: ContextPlan,
    *,
    softmax_scale: float | None = None,
    learnable_sink: Tensor | None = None,
    deterministic: bool | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """The rows of one rank of ``softmax(softmax_scale * Q K^T + mask) V``, as one process would compute them.

    Every rank of the plan's group calls it, with the same mask, and differentiates its results if any rank does: both
    directions hold a collective. Tensors are sharded by ``plan.shard(tensor, dim=1)``.

    Args:
        query: [B, L, Hq, D], this rank's rows.
        key: [B, L, Hk, D], the same rows.
        value: [B, L, Hk, Dv].
        mask: of the whole sequence: the mask that the plan was made for, or any other of that length.
        plan: who holds which rows.
        softmax_scale: default D ** -0.5.
        learnable_sink: [Hq], one more logit in each head's softmax; its gradient is the share of this rank's rows.
        deterministic, backend: as in ``flashmask_attention``.

    Returns:
        out [B, L, Hq, Dv] in the dtype of ``query``, and lse [B, Hq, L] in float32 (float64 for float64 inputs), both
        differentiable. Rows of padding have out 0 and lse -inf.

    Raises:
        TypeError, ValueError: arguments that do not fit together or do not fit the plan.
    """
    query, key, value = arguments.cast_for_autocast(query, key, value)
    arguments.check_tensors(query, key, value)
    if learnable_sink is not None:
        arguments.check_sink(learnable_sink, query)
    _check(query, key, mask, plan)
    exchange = plan.exchange(mask)
    scale = query.shape[-1] ** -0.5 if softmax_scale is None else float(softmax_scale)
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    num_rows, length = exchange.local_mask.seqlen_q, query.shape[1]
    query, key, value = (x[:, :num_rows] for x in (query, key, value))
    settings = (exchange, plan.group, scale, deterministic, backend)
    out, lse = _Attend.apply(query, key, value, learnable_sink, *settings)  # type: ignore[misc]
    if length > num_rows:
        padding = length - num_rows
        out, lse = F.pad(out, (0, 0, 0, 0, 0, padding)), F.pad(lse, (0, padding), value=float("-inf"))
    return out, lse


def _check(query: Tensor, key: Tensor, mask: ColumnMask, plan: ContextPlan) -> None:
    if plan.group is None and plan.num_ranks > 1:
        raise ValueError(
            f"the plan for {plan.num_ranks} ranks is simulated; pass plan_context_parallel a process group to attend"
        )
    if not query.shape[1] == key.shape[1] == plan.length():
        raise ValueError(
            f"rank {plan.rank} of the plan holds {plan.length()} rows, query has {query.shape[1]} and key "
            f"{key.shape[1]}; shard them with plan.shard(tensor, dim=1)"
        )
    if mask.batch not in (1, query.shape[0]):
        raise ValueError(f"the mask has batch size {mask.batch}, query has {query.shape[0]}")
    if mask.num_heads not in (1, key.shape[2], query.shape[2]):
        raise ValueError(
            f"the mask has {mask.num_heads} heads; allowed are 1, {key.shape[2]} (key) and {query.shape[2]} (query)"
        )
    if mask.device != query.device:
        raise ValueError(f"the mask is on {mask.device}, query on {query.device}; move it once with mask.to(device)")


class _Attend(torch.autograd.Function):
    """The whole exchange in one node: whatever is differentiated, its backward runs once on every rank."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sink_H: Tensor | None,
        exchange: KeyExchange,
        group: Group,
        scale: float,
        deterministic: bool,
        backend: str,
    ) -> tuple[Tensor, Tensor]:
        options = [Options(m, scale, deterministic=deterministic) for m in (exchange.local_mask, exchange.remote_mask)]
        sender = None if exchange.is_silent else KeySender(exchange, group, key, value)
        travelling = None if sender is None else sender.send(key, value)
        keys = [(key, value)]
        parts: list[Part] = [operator.forward(query, key, value, options[0], backend)]
        if sender is not None and travelling is not None:
            keys.append(sender.receive(travelling))
            if exchange.num_remote:
                parts.append(operator.forward(query, *keys[1], options[1], backend))
        ctx.save_for_backward(query, sink_H, *(x for pair in (*keys, *parts) for x in pair))
        ctx.num_parts, ctx.options, ctx.backend, ctx.sender = len(parts), options, backend, sender
        ctx.set_materialize_grads(False)
        out, lse = merge(parts, sink_H)
        # A part's own tensor must not be both saved and returned.
        return (out.view_as(out) if out is parts[0][0] else out), (lse.view_as(lse) if lse is parts[0][1] else lse)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> Any:  # type: ignore[override]
        query, sink_H, *saved = ctx.saved_tensors
        pairs = list(zip(saved[::2], saved[1::2], strict=True))
        keys, parts = pairs[: len(pairs) - ctx.num_parts], pairs[len(pairs) - ctx.num_parts :]
        of_parts, of_sink = part_gradients(grad_out, grad_lse, parts, sink_H)

        def gradients(index: int) -> tuple[Tensor, Tensor, Tensor]:
            of_inputs = (*of_parts[index], query, *keys[index], *parts[index], ctx.options[index], ctx.backend)
            return operator.backward(*of_inputs)[:3]

        sender: KeySender | None = ctx.sender
        if sender is None:
            return *gradients(0), of_sink, None, None, None, None, None
        of_remote = gradients(1) if len(parts) > 1 else (None, *map(torch.zeros_like, keys[1]))
        travelling = sender.send_gradients(*of_remote[1:])
        of_query, of_key, of_value = gradients(0)
        if of_remote[0] is not None:
            exact = torch.promote_types(query.dtype, torch.float32)
            of_query = of_query.to(exact).add_(of_remote[0]).to(query.dtype)
        of_key, of_value = sender.add_gradients(travelling, of_key, of_value)
        return of_query, of_key, of_value, of_sink, None, None, None, None, None
