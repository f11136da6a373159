"""Tokens ordered by their experts, and back. S tokens, E experts, k choices, D width."""

from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.nn.functional.extents import AT


@api(at=AT, out=False)
def moe_permute(
    hidden_states: Tensor,
    scale: Tensor | None,
    expert_routemap_topk: Tensor,
    expert_prob_topk: Tensor,
    num_experts: int,
    tokens_per_expert: Any,
    padding_alignment: int,
    do_gather: bool = True,
    using_ue8m0_scale: bool = False,
    return_expert_indices: bool = False,
    override_buffer_size: int = -1,
) -> Any:
    """Copy each token to the rows of its experts, expert after expert, each in the order of the tokens.

    Args:
        hidden_states: [S, D].
        scale: [S, n], scales of float8 tokens, copied alongside; or None.
        expert_routemap_topk: int32 [S, k], the experts; -1: none.
        expert_prob_topk: float32 [S, k].
        tokens_per_expert: E numbers.
        padding_alignment: the rows of an expert are filled up with zeros to a multiple of it.
        return_expert_indices: also return the expert of each row, -1 for a filled one.
        override_buffer_size: number of all rows if positive.

    Returns:
        (rows [R, D], row of each token at each expert int32 [S, E] or -1, probabilities float32 [R], scales [R, n]).

    Raises:
        ValueError: `do_gather=False`, or scales packed in integers.
    """
    if not do_gather or using_ue8m0_scale:
        raise ValueError("moe_permute takes do_gather=True and using_ue8m0_scale=False only")
    counts = [int(n) for n in tokens_per_expert]
    sizes = [-(-n // padding_alignment) * padding_alignment for n in counts]
    starts = torch.tensor([0, *sizes], device=hidden_states.device).cumsum(0)
    total = int(starts[-1]) if override_buffer_size <= 0 else override_buffer_size
    chosen = expert_routemap_topk.long()
    matches = chosen.unsqueeze(-1) == torch.arange(num_experts, device=chosen.device)  # [S, k, E]
    sent = matches.any(1)
    place = sent.long().cumsum(0) - 1 + starts[:-1]
    rowmap = torch.where(sent, place, -1)
    token, expert = torch.nonzero(sent, as_tuple=True)
    target = rowmap[token, expert]
    share = (expert_prob_topk.unsqueeze(-1) * matches).sum(1)[token, expert]
    rows = hidden_states.new_zeros(total, hidden_states.shape[1]).index_copy(0, target, hidden_states[token])
    probabilities = share.new_zeros(total).index_copy(0, target, share)
    scales = hidden_states.new_zeros(0) if scale is None else scale.new_zeros(total, scale.shape[1])
    scales = scales if scale is None else scales.index_copy(0, target, scale[token])
    made = (rows, rowmap.int(), probabilities, scales)
    if not return_expert_indices:
        return made
    indices = torch.full((total,), -1, dtype=torch.int32, device=chosen.device)
    return *made, indices.index_copy(0, target, expert.int())


@api(at=AT, out=False)
def moe_unpermute(
    hidden_states_unzipped: Tensor,
    zipped_expertwise_rowmap: Tensor,
    expert_routemap_topk: Tensor,
    token_prob_unzipped: Tensor,
    total_zipped_tokens: int,
    num_experts: int,
    using_mix_precision: bool = True,
    using_weighted_combine: bool = False,
) -> tuple[Tensor, Tensor]:
    """The sum of the rows of each token over its experts: the way back of `moe_permute`.

    Args:
        hidden_states_unzipped: [R, D].
        zipped_expertwise_rowmap: int32 [S, E], rows or -1.
        expert_routemap_topk: int32 [S, k].
        token_prob_unzipped: float32 [R] or [R, 1].
        using_mix_precision: add in float32.
        using_weighted_combine: weight the rows by their probabilities.

    Returns:
        (tokens [S, D], probabilities float32 [S, k]; 0 where there is no expert).
    """
    rowmap = zipped_expertwise_rowmap.long()
    there = rowmap >= 0
    row = rowmap.clamp(min=0)
    share = token_prob_unzipped.reshape(-1)
    picked = hidden_states_unzipped[row]
    half = picked.dtype in (torch.float16, torch.bfloat16)
    picked = picked.float() if using_mix_precision and half else picked
    weights = torch.where(there, share[row], 0.0) if using_weighted_combine else there
    tokens = (picked * weights.to(picked.dtype).unsqueeze(-1)).sum(1).to(hidden_states_unzipped.dtype)
    chosen = expert_routemap_topk.long()
    at = row.gather(1, chosen.clamp(min=0))
    found = (chosen >= 0) & there.gather(1, chosen.clamp(min=0))
    return tokens, torch.where(found, share[at], 0.0)
