"""The generation loop: one prefill over all prompts, then one token per row and step.

Uneven prompts are padded on the left, so the newest token of every row sits in the last column. A padded column is
hidden from every query by the mask, and position ids count from the first real token of a row. A finished row leaves
the batch and the cache.

Shape letters: B batch (unfinished rows), S new columns, L columns in all, V vocabulary, E model width.
"""

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from oarlock.attention import ColumnMask
from oarlock.generate.cache import KeyValueCache
from oarlock.generate.sampling import Sampler, Sampling
from oarlock.models import Decoder

_FIRST_CAPACITY = 256  # new columns allocated beforehand; the cache doubles from there


def generate(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int | Sequence[int] = 0,
    eos_id: int | Sequence[int] | None = None,
    bos_id: int | None = None,
    num_tokens: int | None = None,
    use_cache: bool = True,
    on_token: Callable[[int, int], None] | None = None,
) -> list[list[int]]:
    """Continue each prompt until an end token, `max_new_tokens`, or the end of the model's context.

    A row's tokens are a function of its prompt and seed. Its neighbours change no random number; they can
    only move a logit by rounding, as another batch size means another order of summation.

    Args:
        model: decoder, any floating dtype and device. Runs in eval mode; its training flag is restored.
        prompts: token ids, one list per row, of any lengths. An empty prompt starts from `bos_id`.
        max_new_tokens: most tokens to add to a row. A row also stops when prompt and continuation fill
            `max_position_embeddings`; a warning says so beforehand.
        temperature, top_k, top_p, min_p, repetition_penalty: see `Sampling`; temperature 0 is greedy.
        seed: one for every row, or one per row: give the samples of one prompt different seeds.
        eos_id: token or tokens that end a row.
        bos_id: token that an empty prompt starts from.
        num_tokens: draw only tokens below this id, for a vocabulary that was padded beyond its tokenizer's.
        use_cache: False recomputes the whole sequence at every step (slow; for comparison).
        on_token: called as `on_token(row, token)` for every new token, step by step in row order.

    Returns:
        The new tokens of each row, without the prompt; the end token, where there was one, comes last.

    Raises:
        ValueError: a setting or token is out of range, a prompt is empty and `bos_id` is None, a prompt
            leaves no room in the context, or the model's logits are not finite.
    """
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    vocab_size, context = model.config.vocab_size, model.config.max_position_embeddings
    if num_tokens is not None and not 1 <= num_tokens <= vocab_size:
        raise ValueError(f"num_tokens must be from 1 to the model's vocab_size {vocab_size}, got {num_tokens}")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    prompts = [_checked_prompt(row, prompt, bos_id, vocab_size, context) for row, prompt in enumerate(prompts)]
    seeds = [seed] * len(prompts) if isinstance(seed, int) else list(seed)
    if len(seeds) != len(prompts):
        raise ValueError(f"{len(seeds)} seeds for {len(prompts)} prompts: give one seed, or one per prompt")
    if not prompts:
        return []
    room = context - max(map(len, prompts))
    if room < max_new_tokens:
        warnings.warn(
            f"the longest prompt leaves room for {room} of {max_new_tokens} new tokens: "
            f"the model's max_position_embeddings is {context}; rows stop there",
            stacklevel=2,
        )
    limits = [min(max_new_tokens, context - len(prompt)) for prompt in prompts]
    ends = frozenset([eos_id] if isinstance(eos_id, int) else eos_id or ())
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            batch = Batch(model, prompts, use_cache=use_cache, capacity=min(max(limits), _FIRST_CAPACITY))
            sampler = Sampler(
                sampling, prompts, seeds, num_tokens=num_tokens or vocab_size, device=model.output_weight.device
            )
            return _run(batch, sampler, limits, ends, num_tokens, on_token)
    finally:
        model.train(was_training)


class Batch:
    """The unfinished rows: their tokens, padding and cache."""

    def __init__(self, model: Decoder, prompts: list[list[int]], *, use_cache: bool, capacity: int) -> None:
        self._model = model
        device = model.output_weight.device
        self._length = max(map(len, prompts))
        self._pads = [self._length - len(prompt) for prompt in prompts]
        self._tokens_BS = torch.tensor([[0] * pad + prompt for pad, prompt in zip(self._pads, prompts, strict=True)])
        self._tokens_BS = self._tokens_BS.to(device)
        self._cache = None
        if use_cache:
            self._cache = KeyValueCache(model.config.num_hidden_layers, capacity=self._length + capacity)
        self._set_pads(self._pads)

    def logits(self) -> Tensor:
        """Logits [B, V] of the token after the newest one."""
        length = self._length
        num_new = self._tokens_BS.shape[1]
        columns_S = torch.arange(length - num_new, length, device=self._tokens_BS.device)
        hidden_BSE = self._model(
            self._tokens_BS,
            position_ids=(columns_S - self._pad_B1).clamp_(min=0),
            mask=self._mask(num_new),
            cache=self._cache,
        )
        return self._model.logits(hidden_BSE[:, -1:]).squeeze(1)

    def extend(self, token_B: Tensor) -> None:
        """Add one token to every row."""
        self._length += 1
        newest_B1 = token_B[:, None]
        self._tokens_BS = newest_B1 if self._cache is not None else torch.cat([self._tokens_BS, newest_B1], dim=1)

    def reorder(self, kept: list[int]) -> None:
        """Keep the batch rows `kept`."""
        self._tokens_BS = self._tokens_BS[kept]
        self._set_pads([self._pads[row] for row in kept])
        if self._cache is not None:
            self._cache.reorder(torch.tensor(kept, device=self._tokens_BS.device))

    def _set_pads(self, pads: list[int]) -> None:
        self._pads = pads
        self._pad_B1 = torch.tensor(pads, device=self._tokens_BS.device)[:, None]

    def _mask(self, num_new: int) -> ColumnMask | None:
        """Causal, with the padded columns hidden from every query (bound 0); None where no row is padded."""
        if not any(self._pads):
            return None
        columns_L = torch.arange(self._length, device=self._tokens_BS.device)
        bounds_BL = torch.where(columns_L < self._pad_B1, 0, num_new).to(torch.int32)
        return ColumnMask(bounds_BL[:, None, :, None], causal=True, seqlen_q=num_new)


def _run(
    batch: Batch,
    sampler: Sampler,
    limits: list[int],
    ends: frozenset[int],
    num_tokens: int | None,
    on_token: Callable[[int, int], None] | None,
) -> list[list[int]]:
    outputs: list[list[int]] = [[] for _ in limits]
    rows = list(range(len(limits)))  # the prompt that each row of the batch continues
    while True:
        logits_BV = batch.logits()[:, :num_tokens]
        if not logits_BV.amax().isfinite():  # nan and inf both survive a maximum
            raise ValueError("the model's logits are not finite: its weights are broken, or its dtype overflows")
        token_B = sampler(logits_BV)
        kept = []
        for position, (row, token) in enumerate(zip(rows, token_B.tolist(), strict=True)):
            outputs[row].append(token)
            if on_token is not None:
                on_token(row, token)
            if token not in ends and len(outputs[row]) < limits[row]:
                kept.append(position)
        if not kept:
            return outputs
        if len(kept) < len(rows):
            rows = [rows[position] for position in kept]
            token_B = token_B[kept]
            batch.reorder(kept)
            sampler.reorder(kept)
        batch.extend(token_B)


def _checked_prompt(row: int, prompt: Sequence[int], bos_id: int | None, vocab_size: int, context: int) -> list[int]:
    tokens = list(prompt)
    if not tokens:
        if bos_id is None:
            raise ValueError(f"prompt {row} is empty and there is no bos_id to start from")
        tokens = [bos_id]
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise ValueError(f"prompt {row} holds token {token}, outside the model's vocabulary of {vocab_size}")
    if len(tokens) >= context:
        raise ValueError(
            f"prompt {row} has {len(tokens)} tokens; the model's max_position_embeddings {context} leaves no room for "
            "a new one: shorten the prompt"
        )
    return tokens
