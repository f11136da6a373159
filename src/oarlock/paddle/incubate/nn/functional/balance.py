"""What training a mixture of experts does beside the experts. S tokens, E experts, k choices, D width."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.paddle.declare import api

AT = "paddle.incubate.nn.functional"


@api(at=AT, out=False)
def cal_aux_loss(
    gate_prob: Tensor,
    dispatch_mask: Tensor,
    tokens_mask: Tensor | None,
    dispatch_tokens_mask: Tensor | None,
    num_experts: int,
    use_group: bool,
    moe_k: int,
    clip_min: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The balance loss `num_experts · sum (share of the tokens)·(mean probability)` over the experts.

    Args:
        gate_prob: [S, E].
        dispatch_mask: int64 [E], tokens of each expert, or [S, E].
        tokens_mask: [S], 1 for a token that counts; or None.
        dispatch_tokens_mask: bool, the tokens of all ranks that count; they are what is divided by. Else those of
            `tokens_mask`, else `S·E / num_experts`.
        use_group: divide by `moe_k`.
        clip_min: lower bound of divisors.

    Returns:
        (the loss, the number of tokens, the shares [E]), in the dtype of `gate_prob`. The value of the loss is per own
        token of `tokens_mask`, its gradient per token of all ranks.
    """
    full = gate_prob.float() if gate_prob.dtype != torch.float64 else gate_prob
    count = tokens_mask if dispatch_tokens_mask is None else dispatch_tokens_mask
    if count is None:
        length = full.new_tensor(full.shape[0] / num_experts * full.shape[1])
    else:
        length = count.to(full.dtype).sum()
    length = length.clamp(min=clip_min)
    chosen = dispatch_mask.sum(0) if dispatch_mask.ndim == 2 else dispatch_mask
    share = chosen.to(full.dtype) / length
    loss = (share * full.sum(0) / length).sum() * num_experts
    loss = loss / moe_k if use_group else loss
    if tokens_mask is not None:
        # Own tokens in the value, those of all ranks in the gradient.
        scale = length / tokens_mask.to(full.dtype).sum().clamp(min=clip_min)
        loss = loss + (scale - 1) * loss.detach()
    return loss.to(gate_prob.dtype), length.to(gate_prob.dtype), share.to(gate_prob.dtype)


@api(at=AT, out=False)
def build_src_rank_and_local_expert_id(
    expert_num_global_tensor: Tensor, expert_num_global: Sequence[int], num_local_experts: int
) -> tuple[Tensor, Tensor]:
    """(the rank, the place on its rank) of the expert of each row, where the experts' rows follow each other.

    Args:
        expert_num_global_tensor: int64 [E], rows of each expert; `expert_num_global` the same as a list.
        num_local_experts: experts on a rank.

    Returns:
        int32, as many as there are rows.
    """
    counts = expert_num_global_tensor.long()
    expert = torch.arange(len(counts), dtype=torch.int32, device=counts.device).repeat_interleave(counts)
    return expert // num_local_experts, expert % num_local_experts


@api(at=AT, out=False)
def expand_modality_expert_id(
    expert_id: Tensor, num_expert_per_modality: int, group_size: int, modality_offset: int, is_group_expert: bool
) -> Tensor:
    """The experts of one of two modalities, whose experts lie side by side on each rank, among all of them.

    Args:
        expert_id: [S, k], the experts within the modality.
        num_expert_per_modality: of one rank; not positive: there is one modality.
        group_size: experts of a group; with `is_group_expert` choice i counts from the i-th group.
        modality_offset: 0 or 1, the modality.
    """
    expert = expert_id
    if is_group_expert:
        expert = expert + torch.arange(expert.shape[1], dtype=expert.dtype, device=expert.device) * group_size
    if num_expert_per_modality <= 0:
        return expert.clone()
    rank, place = expert // num_expert_per_modality, expert % num_expert_per_modality
    return rank * 2 * num_expert_per_modality + place + modality_offset * num_expert_per_modality


@api(at=AT, out=False)
def cross_entropy_with_softmax_bwd_w_downcast(label: Tensor, softmax: Tensor, loss_grad: Tensor) -> Tensor:
    """The gradient of a cross entropy with respect to the logits, `(softmax - onehot(label))·loss_grad`, in bfloat16.

    Args:
        label: [S, 1], indices.
        softmax: float32 [S, C].
        loss_grad: float32 [S, 1].
    """
    one = F.one_hot(label.reshape(softmax.shape[:-1]).long(), softmax.shape[-1])
    return ((softmax - one) * loss_grad).bfloat16()


@api(at=AT, out=False)
@torch.no_grad()
def embedding_grad_add_to_(token_indices: Tensor, main_grad_: Tensor, out_grad: Tensor) -> Tensor:
    """Add the rows of `out_grad` [..., D] to the rows `token_indices` [...] of `main_grad_` [V, D], in place."""
    rows = out_grad.reshape(-1, main_grad_.shape[1]).to(main_grad_.dtype)
    return main_grad_.index_add_(0, token_indices.flatten().long(), rows)
