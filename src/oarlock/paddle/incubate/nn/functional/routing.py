"""Mixture of experts: tokens sent to the slots of their experts, and back. S tokens, E experts, k choices, D width."""

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import as_dtype

AT = "paddle.incubate.nn.functional"


def _slots(experts: Tensor, num_experts: int, first_choice_first: bool) -> tuple[Tensor, Tensor]:
    """(place of each choice among those of its expert [S, k], choices of the experts up to each of them [E])."""
    rows, k = experts.shape
    flat = experts.T.reshape(-1) if first_choice_first else experts.reshape(-1)
    order = torch.argsort(flat, stable=True)
    ends = torch.bincount(flat, minlength=num_experts).cumsum(0)
    sorted_experts = flat[order]
    starts = torch.cat([ends.new_zeros(1), ends])[sorted_experts]
    place = torch.empty_like(flat)
    place[order] = torch.arange(len(flat), device=flat.device) - starts
    return (place.reshape(k, rows).T if first_choice_first else place.reshape(rows, k)), ends


def _dispatch(
    x: Tensor, gate_logits: Tensor, corr_bias: Tensor | None, k: int, capacity: int, use_pad: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, int]:
    """(slot of each choice, whether it has one, weights, ends, experts, number of slots)."""
    num_experts = gate_logits.shape[1]
    ranked = gate_logits if corr_bias is None else gate_logits + corr_bias
    experts = ranked.detach().topk(k, dim=1).indices
    place, ends = _slots(experts, num_experts, use_pad)
    kept = place < capacity
    weights = torch.where(kept, gate_logits.gather(1, experts), 0.0)
    starts = torch.cat([ends.new_zeros(1), ends])[experts]
    slot = place + (experts * capacity if use_pad else starts)
    size = num_experts * capacity if use_pad else x.shape[0] * k
    return torch.where(kept, slot, 0), kept, weights, ends, experts, size


def _filled(x: Tensor, slot: Tensor, kept: Tensor, size: int) -> Tensor:
    rows = torch.nonzero(kept)[:, 0]
    return x.new_zeros(size, x.shape[1]).index_copy(0, slot[kept], x[rows])


@api(at=AT, out=False)
def moe_gate_dispatch(
    x: Tensor, gate_logits: Tensor, corr_bias: Tensor | None, k: int, capacity: int, use_pad: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Send each token to the slots of the k experts with the largest `gate_logits + corr_bias`.

    An expert takes `capacity` tokens: the first choices before the second ones and so on, each in the order of the
    tokens (without `use_pad` token by token). The rest is dropped: its weight and slot are 0.

    Args:
        x: [S, D].
        gate_logits: float32 [S, E], probabilities; they are the weights as they are.
        corr_bias: [E], moves the choice only.
        use_pad: expert e owns the slots from `e·capacity` on, empty ones are 0; else slots follow each other.

    Returns:
        (y [E·capacity or S·k, D], weights float32 [S, k], slots int32 [k, S], int64 [E] how many choices fell on an
        expert and those before it, experts int32 [S, k]). Gradients flow through y and the weights.
    """
    slot, kept, weights, ends, experts, size = _dispatch(x, gate_logits, corr_bias, int(k), int(capacity), use_pad)
    return _filled(x, slot, kept, size), weights, slot.T.contiguous().int(), ends, experts.int()


@api(at=AT, out=False)
def moe_gate_dispatch_permute(
    x: Tensor, gate_logits: Tensor, corr_bias: Tensor | None, k: int, capacity: int, world_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`moe_gate_dispatch` with padding, whose slots are ordered by the place of an expert on its rank, then by rank.

    Args:
        world_size: number of ranks, each with E / world_size experts.

    Returns:
        As `moe_gate_dispatch`, with y [E / world_size, world_size·capacity, D]; the slots are those before the order.
    """
    y, weights, slots, ends, experts = moe_gate_dispatch(x, gate_logits, corr_bias, k, capacity, True)
    local = gate_logits.shape[1] // world_size
    ordered = y.reshape(world_size, local, capacity, -1).transpose(0, 1).reshape(local, world_size * capacity, -1)
    return ordered, weights, slots, ends, experts


@api(at=AT)
def moe_combine(x: Tensor, combine_weights: Tensor, scatter_index: Tensor) -> Tensor:
    """`sum combine_weights[s, i]·x[slot of choice i of token s]` over i: tokens brought back from their experts.

    Args:
        x: [slots, D].
        combine_weights: [S, k].
        scatter_index: int32 [S, k], or [k, S] as `moe_gate_dispatch` gives it (if k is S, [S, k] is meant).

    Returns:
        [S, D].
    """
    rows, k = combine_weights.shape
    index = scatter_index if tuple(scatter_index.shape) == (rows, k) else scatter_index.reshape(k, rows).T
    return torch.einsum("sk,skd->sd", combine_weights.to(x.dtype), x[index.long()])


@api(at=AT)
def int_bincount(x: Tensor, low: int, high: int, dtype: str | None = None) -> Tensor:
    """How often each of the integers `low` to `high - 1` occurs in `x`, in the dtype of `x` unless given."""
    flat = x.flatten()
    counts = torch.bincount(flat[(flat >= low) & (flat < high)] - low, minlength=high - low)
    return counts.to(as_dtype(dtype) or x.dtype)
