"""Mixture of experts, which expert gets which token: scores, choice, weights, balance.

N tokens, X experts, K experts per token, G groups of M experts.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Scoring = Literal["softmax", "sigmoid"]


@dataclass(frozen=True)
class Routing:
    """The experts of each token."""

    experts_NK: Tensor
    """int64 [N, K] chosen experts."""
    weights_NK: Tensor
    """float32 [N, K] their weights in the sum of outputs."""
    scores_NX: Tensor
    """float32 [N, X] scores of all experts, before the selection bias."""

    def load(self) -> Tensor:
        """int64 [X]: how many tokens chose each expert."""
        return count_choices(self.experts_NK.flatten(), self.scores_NX.shape[1])


def count_choices(experts_M: Tensor, num_experts: int) -> Tensor:
    """int64 [X]: how often each expert was chosen. A bincount, whose shape would depend on values in a graph."""
    counts_X = torch.zeros(num_experts, dtype=torch.int64, device=experts_M.device)
    return counts_X.scatter_add_(0, experts_M, torch.ones_like(experts_M))


def route(
    logits_NX: Tensor,
    num_chosen: int,
    *,
    scoring: Scoring = "softmax",
    selection_bias: Tensor | None = None,
    renormalise: bool = False,
    smallest_sum: float = 1e-20,
    scale: float = 1.0,
    num_groups: int = 1,
    num_chosen_groups: int = 1,
) -> Routing:
    """Choose the top-K experts of each token.

    scores = softmax(logits) or sigmoid(logits); the K largest of scores + selection_bias are chosen; their weights are
    the scores (without the bias), divided by their sum if `renormalise`, times `scale`. With several groups of experts
    (those of one node, say), a token chooses groups first, by the sum of the two largest of a group's numbers, and then
    among the experts of these groups.

    Args:
        logits_NX: [N, X] router outputs; computed in float32 (float64 stays).
        num_chosen: K.
        scoring: "softmax" (Qwen3, ERNIE 4.5; renormalised it is the softmax over the chosen logits of gpt-oss) or
            "sigmoid" (DeepSeek-V3, dots1).
        selection_bias: [X], moves the choice only: the load balancing without auxiliary loss.
        renormalise: make the K weights sum to `scale`.
        smallest_sum: lower bound of the divisor.
        scale: factor on the weights.
        num_groups: equal groups of neighbouring experts, at least two experts in each.
        num_chosen_groups: groups that the experts of a token come from.

    Returns:
        Routing. Gradients flow through the weights and scores, not through the choice.

    Raises:
        ValueError: K outside [1, X], an unknown scoring, or groups that do not fit.

    Source: Shazeer et al. 2017 (top-k gating); DeepSeek-AI, "DeepSeek-V3", 2024, section 2.1.2.
    """
    num_experts = logits_NX.shape[1]
    if not 1 <= num_chosen <= num_experts:
        raise ValueError(f"a token must choose between 1 and {num_experts} experts; got {num_chosen}")
    logits_NX = logits_NX if logits_NX.dtype == torch.float64 else logits_NX.float()
    if scoring == "softmax":
        scores_NX = logits_NX.softmax(dim=-1)
    elif scoring == "sigmoid":
        scores_NX = logits_NX.sigmoid()
    else:
        raise ValueError(f"scoring must be 'softmax' or 'sigmoid'; got {scoring!r}")
    choice_NX = scores_NX.detach()
    if selection_bias is not None:
        choice_NX = choice_NX + selection_bias
    if num_groups > 1:
        check_groups(num_experts, num_chosen, num_groups, num_chosen_groups)
        choice_NX = _within_groups(choice_NX, num_groups, num_chosen_groups)
    experts_NK = choice_NX.topk(num_chosen, dim=-1).indices
    weights_NK = scores_NX.gather(1, experts_NK)
    if renormalise:
        weights_NK = weights_NK / weights_NK.sum(dim=-1, keepdim=True).clamp(min=smallest_sum)
    return Routing(experts_NK, weights_NK if scale == 1.0 else weights_NK * scale, scores_NX)


def check_groups(num_experts: int, num_chosen: int, num_groups: int, num_chosen_groups: int) -> None:
    """ValueError unless K experts can be chosen from so many groups."""
    size = num_experts // max(num_groups, 1)
    if num_groups < 1 or num_experts % num_groups or (size < 2 and num_groups > 1):
        raise ValueError(f"{num_experts} experts do not form {num_groups} equal groups of at least two")
    if not 1 <= num_chosen_groups <= num_groups or num_chosen > num_chosen_groups * size:
        raise ValueError(
            f"{num_chosen} experts of a token cannot come from {num_chosen_groups} of {num_groups} groups of {size}"
        )


def _within_groups(choice_NX: Tensor, num_groups: int, num_chosen_groups: int) -> Tensor:
    """The numbers of the experts in each token's best groups; -infinity for the others."""
    choice_NGM = choice_NX.unflatten(1, (num_groups, -1))
    group_NG = choice_NGM.topk(2, dim=-1).values.sum(dim=-1)
    is_left_out_NG = torch.ones_like(group_NG, dtype=torch.bool)
    is_left_out_NG.scatter_(1, group_NG.topk(num_chosen_groups, dim=-1).indices, False)
    return choice_NGM.masked_fill(is_left_out_NG.unsqueeze(-1), float("-inf")).flatten(1)


def balance_loss(routing: Routing) -> Tensor:
    """X · Σ_x f_x · P_x: f_x = tokens that chose expert x / N, P_x = mean score share of x. K at perfect balance.

    Sigmoid scores are first divided by their sum per token, so that P sums to 1.

    Source: Fedus et al., "Switch Transformers", 2021, equations 4 to 6, for K choices.
    """
    num_tokens, num_experts = routing.scores_NX.shape
    share_NX = routing.scores_NX / routing.scores_NX.sum(dim=-1, keepdim=True)
    fraction_X = routing.load().to(share_NX.dtype) / num_tokens
    return num_experts * torch.dot(fraction_X, share_NX.mean(dim=0))


def balanced_bias(selection_bias: Tensor, load: Tensor, rate: float) -> Tensor:
    """bias + rate · sign(mean load - load): overloaded experts become less attractive.

    Args:
        selection_bias: float32 [X].
        load: [X] tokens per expert since the last update.
        rate: step, 0.001 in DeepSeek-V3.

    Source: Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts", 2024.
    """
    load = load.to(selection_bias.dtype)
    return selection_bias + rate * torch.sign(load.mean() - load)
