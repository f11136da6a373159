"""Mixture of experts, which expert gets which token: scores, choice, weights, balance.

N tokens, X experts, K experts per token.
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
        return torch.bincount(self.experts_NK.flatten(), minlength=self.scores_NX.shape[1])


def route(
    logits_NX: Tensor,
    num_chosen: int,
    *,
    scoring: Scoring = "softmax",
    selection_bias: Tensor | None = None,
    renormalise: bool = False,
    smallest_sum: float = 1e-20,
    scale: float = 1.0,
) -> Routing:
    """Choose the top-K experts of each token.

    scores = softmax(logits) or sigmoid(logits); the K largest of scores + selection_bias are chosen; their weights are
    the scores (without the bias), divided by their sum if `renormalise`, times `scale`.

    Args:
        logits_NX: [N, X] router outputs; computed in float32 (float64 stays).
        num_chosen: K.
        scoring: "softmax" (Qwen3, ERNIE 4.5) or "sigmoid" (DeepSeek-V3, dots1).
        selection_bias: [X], moves the choice only: the load balancing without auxiliary loss.
        renormalise: make the K weights sum to `scale`.
        smallest_sum: lower bound of the divisor.
        scale: factor on the weights.

    Returns:
        Routing. Gradients flow through the weights and scores, not through the choice.

    Raises:
        ValueError: K outside [1, X] or an unknown scoring.

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
    experts_NK = choice_NX.topk(num_chosen, dim=-1).indices
    weights_NK = scores_NX.gather(1, experts_NK)
    if renormalise:
        weights_NK = weights_NK / weights_NK.sum(dim=-1, keepdim=True).clamp(min=smallest_sum)
    return Routing(experts_NK, weights_NK if scale == 1.0 else weights_NK * scale, scores_NX)


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
