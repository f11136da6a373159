"""From logits to the next token: filters in the order of `transformers`, then one draw per row.

Order: repetition penalty, temperature, top-k, top-p, min-p. Ties at the edge of a filter are all kept, so the result
does not depend on how a sort breaks them.

A draw inverts the cumulative distribution in token order with one uniform number from the row's own
`torch.Generator`: what a row draws depends on its seed and its logits, never on its neighbours.

Shape letters: B batch, V vocabulary, K survivors of a filter.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_FIRST_SORTED = 64


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. The defaults sample from the model's own distribution."""

    temperature: float = 1.0
    """Divides the logits; 0 takes the most probable token (greedy), whatever the filters say."""
    top_k: int | None = None
    """Keep the k most probable tokens."""
    top_p: float = 1.0
    """Keep the smallest set of most probable tokens whose probabilities reach p (nucleus sampling)."""
    min_p: float = 0.0
    """Keep tokens at least min_p times as probable as the most probable one."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens that the row already holds, prompt included."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be 0 (greedy) or positive and finite, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1 (or None to keep all tokens), got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p must be from 0 to 1, got {self.min_p}")
        if not 0 < self.repetition_penalty < float("inf"):
            raise ValueError(f"repetition_penalty must be positive and finite, got {self.repetition_penalty}")


def filter_logits(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Logits after temperature, top-k, top-p and min-p; removed tokens are -inf, at least one token stays.

    Args:
        logits_BV: [B, V], fp32 or fp64. Not changed.
        sampling: settings; the temperature must not be 0.

    Source: `transformers.generation.logits_process` (Temperature-, TopK-, TopP- and MinPLogitsWarper). Differs in
        one point: tokens tied with the last one that top-p keeps are kept too.
    """
    scores_BV = logits_BV / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < scores_BV.shape[-1]:
        scores_BV = _drop(scores_BV, scores_BV < scores_BV.topk(sampling.top_k, dim=-1).values[:, -1:])
    if sampling.top_p < 1:
        scores_BV = _drop(scores_BV, scores_BV < _nucleus_floor(scores_BV, sampling.top_p))
    if sampling.min_p > 0:
        probabilities_BV = scores_BV.softmax(dim=-1)
        floor_B1 = sampling.min_p * probabilities_BV.amax(dim=-1, keepdim=True)
        scores_BV = _drop(scores_BV, probabilities_BV < floor_B1)
    return scores_BV


class Sampler:
    """Chooses the next token of every row of a batch.

    Args:
        sampling: settings.
        prompts: token ids of each row so far, in [0, num_tokens); only the repetition penalty reads them.
        seeds: one seed per row. Rows with equal seeds and logits draw equal tokens.
        num_tokens: V, width of the logits.
        device: where the logits live.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        *,
        num_tokens: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.sampling = sampling
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._seen_BV: Tensor | None = None
        if sampling.repetition_penalty != 1:
            self._seen_BV = torch.zeros(len(prompts), num_tokens, dtype=torch.bool, device=device)
            for seen_V, prompt in zip(self._seen_BV, prompts, strict=True):
                seen_V[list(prompt)] = True

    def __call__(self, logits_BV: Tensor) -> Tensor:
        """Token ids int64 [B] drawn from `logits_BV` [B, V], any floating dtype."""
        scores_BV = logits_BV.float()
        if self._seen_BV is not None:
            penalty = self.sampling.repetition_penalty
            penalised_BV = torch.where(scores_BV < 0, scores_BV * penalty, scores_BV / penalty)
            scores_BV = torch.where(self._seen_BV, penalised_BV, scores_BV)
        if self.sampling.temperature == 0:
            token_B = scores_BV.argmax(dim=-1)
        else:
            token_B = self._draw(filter_logits(scores_BV, self.sampling))
        if self._seen_BV is not None:
            self._seen_BV.scatter_(1, token_B[:, None], True)
        return token_B

    def reorder(self, rows: Sequence[int]) -> None:
        """Keep the batch rows `rows`, in that order."""
        self._generators = [self._generators[row] for row in rows]
        if self._seen_BV is not None:
            self._seen_BV = self._seen_BV[list(rows)]

    def _draw(self, scores_BV: Tensor) -> Tensor:
        # Drawn on the CPU in float64: the same numbers on every device, and fine enough for rare tokens.
        uniform_B1 = torch.stack([torch.rand(1, generator=g, dtype=torch.float64) for g in self._generators])
        cumulative_BV = scores_BV.softmax(dim=-1, dtype=torch.float64).cumsum(dim=-1)
        target_B1 = uniform_B1.to(cumulative_BV.device) * cumulative_BV[:, -1:]
        # right=True finds the first token whose cumulative sum exceeds the target: never one of probability 0.
        return torch.searchsorted(cumulative_BV, target_B1, right=True).squeeze(1)


def _nucleus_floor(scores_BV: Tensor, top_p: float) -> Tensor:
    """Score [B, 1] of the last token that top-p keeps: a token stays while the tokens before it hold less than p.

    The nucleus is mostly small, so a few of the best are sorted first, and more only if they do not hold p.
    """
    log_total_B1 = scores_BV.logsumexp(dim=-1, keepdim=True)
    num_sorted = 0
    while True:
        num_sorted = min(max(_FIRST_SORTED, 8 * num_sorted), scores_BV.shape[-1])
        sorted_BK = scores_BV.topk(num_sorted, dim=-1).values
        held_BK = (sorted_BK - log_total_B1).exp().cumsum(dim=-1)
        if num_sorted == scores_BV.shape[-1] or (held_BK[:, -1] >= top_p).all():
            break
    num_kept_B1 = 1 + (held_BK[:, :-1] < top_p).sum(dim=-1, keepdim=True)
    return sorted_BK.gather(-1, num_kept_B1 - 1)


def _drop(scores_BV: Tensor, removed_BV: Tensor) -> Tensor:
    return scores_BV.masked_fill(removed_BV, float("-inf"))
