"""Decoding step by step: `dynamic_decode` runs a Decoder until it is finished, BeamSearchDecoder keeps the best beams.

B batch, K beam size, V tokens, T steps.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from oarlock.paddle.nn.functional.layers import gather_tree

NEVER = 1e9  # subtracted from the log-probability of what must not be chosen


class Decoder:
    """What `dynamic_decode` runs; subclasses give `initialize` and `step`, and `finalize` where they have one."""

    @property
    def tracks_own_finished(self) -> bool:
        """Whether `finished` of a step is the whole truth; else what was finished once stays so."""
        return False

    def initialize(self, inits: Any) -> tuple[Any, Any, Tensor]:
        """(inputs of the first step, states, finished)."""
        raise NotImplementedError

    def step(self, time: Tensor, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any, Any, Tensor]:
        """(outputs, states, inputs of the next step, finished) of step `time`, an int64 tensor [1]."""
        raise NotImplementedError

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Tensor) -> tuple[Any, Any]:
        """(outputs, states) from all outputs [T, ...]."""
        raise NotImplementedError


class BeamSearchDecoder(Decoder):
    """The K sequences of the highest sums of log-probabilities, found step by step.

    Args:
        cell: `(inputs [B K, ...], states) -> (outputs, states)`.
        start_token: the first input.
        end_token: ends a beam; a beam that ended keeps its score and goes on with this token.
        beam_size: K.
        embedding_fn: from tokens [B, K] to the cell's inputs; the tokens themselves by default.
        output_fn: from the cell's outputs [B, K, ...] to logits [B, K, V]; themselves by default.
    """

    class OutputWrapper(NamedTuple):
        """A step's sums of log-probabilities, tokens, and beams that they continue, each [B, K]."""

        scores: Tensor
        predicted_ids: Tensor
        parent_ids: Tensor

    class StateWrapper(NamedTuple):
        """The cell's states [B, K, ...]; of each beam the log-probability, whether it ended, and its length, [B, K]."""

        cell_states: Any
        log_probs: Tensor
        finished: Tensor
        lengths: Tensor

    def __init__(
        self,
        cell: Any,
        start_token: int,
        end_token: int,
        beam_size: int,
        embedding_fn: Callable[[Tensor], Any] | None = None,
        output_fn: Callable[[Any], Tensor] | None = None,
    ) -> None:
        self.cell, self.embedding_fn, self.output_fn = cell, embedding_fn, output_fn
        self.start_token, self.end_token, self.beam_size = start_token, end_token, beam_size

    @staticmethod
    def tile_beam_merge_with_batch(x: Tensor, beam_size: int) -> Tensor:
        """[B, ...] -> [B K, ...], each sample K times: for what the cell attends to, which `kwargs` hand on."""
        return x.repeat_interleave(beam_size, 0)

    @property
    def tracks_own_finished(self) -> bool:
        """True: beams change places."""
        return True

    def initialize(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, initial_cell_states: Any
    ) -> tuple[Any, Any, Tensor]:
        """From states [B, ...]. Only the first beam can be continued at first, for all are the same."""
        first: Tensor = tree_leaves(initial_cell_states)[0]
        size = (first.shape[0], self.beam_size)
        tokens = torch.full(size, self.start_token, dtype=torch.int64, device=first.device)
        log_probs = torch.full(size, -NEVER, dtype=torch.get_default_dtype(), device=first.device)
        log_probs[:, 0] = 0.0
        finished = torch.zeros(size, dtype=torch.bool, device=first.device)
        states = tree_map(lambda x: x.unsqueeze(1).repeat_interleave(self.beam_size, 1), initial_cell_states)
        return (
            self._embedded(tokens),
            self.StateWrapper(states, log_probs, finished, torch.zeros_like(tokens)),
            finished,
        )

    def step(self, time: Tensor, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any, Any, Tensor]:
        """One token for each beam; `kwargs` go to the cell."""
        flat, cell_states = tree_map(lambda x: x.flatten(0, 1), (inputs, states.cell_states))
        outputs, cell_states = self.cell(flat, cell_states, **kwargs)
        outputs, cell_states = tree_map(lambda x: x.unflatten(0, (-1, self.beam_size)), (outputs, cell_states))
        logits = outputs if self.output_fn is None else self.output_fn(outputs)

        num_tokens = logits.shape[-1]
        only_end = logits.new_full([num_tokens], -NEVER)
        only_end[self.end_token] = 0.0
        log_probs_BKV = torch.where(states.finished.unsqueeze(-1), only_end, logits.log_softmax(-1))
        scores, chosen = (states.log_probs.unsqueeze(-1) + log_probs_BKV).flatten(1).topk(self.beam_size)
        parents, tokens = chosen // num_tokens, chosen % num_tokens

        finished, lengths = states.finished.gather(1, parents), states.lengths.gather(1, parents)
        lengths = lengths + ~finished
        finished = finished | (tokens == self.end_token)
        rows = torch.arange(parents.shape[0], device=parents.device).unsqueeze(1)
        cell_states = tree_map(lambda x: x[rows, parents], cell_states)
        return (
            self.OutputWrapper(scores, tokens, parents),
            self.StateWrapper(cell_states, scores, finished, lengths),
            self._embedded(tokens),
            finished,
        )

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Tensor) -> tuple[Any, Any]:
        """The tokens of the beams [T, B, K], followed back from the last step."""
        return gather_tree(outputs.predicted_ids, outputs.parent_ids), final_states

    def _embedded(self, tokens: Tensor) -> Any:
        return tokens if self.embedding_fn is None else self.embedding_fn(tokens)


def dynamic_decode(
    decoder: Any,
    inits: Any = None,
    max_step_num: int | None = None,
    output_time_major: bool = False,
    impute_finished: bool = False,
    is_test: bool = False,
    return_length: bool = False,
    **kwargs: Any,
) -> tuple[Any, ...]:
    """Run a decoder until everything is finished.

    Args:
        decoder: a Decoder.
        inits: for its `initialize`.
        max_step_num: no step later than this one, counted from 0.
        output_time_major: outputs are [T, B, ...] in place of [B, T, ...].
        impute_finished: states of what is finished stay as they are, where the decoder does not track that itself.
        is_test: taken; memory is freed when nothing holds it.
        return_length: give the lengths, too.
        kwargs: for `decoder.step`.

    Returns:
        (outputs, states), or (outputs, states, lengths).
    """
    inputs, states, finished = decoder.initialize(inits)
    lengths = torch.zeros_like(finished, dtype=torch.int64)
    outputs: list[Any] = []
    while not bool(finished.all()):
        time = torch.tensor([len(outputs)], device=finished.device)
        output, new, inputs, ended = decoder.step(time, inputs, states, **kwargs)
        if decoder.tracks_own_finished:
            if not hasattr(new, "lengths"):
                warnings.warn("the states have no `lengths`: the lengths that are returned are zeros", stacklevel=2)
            lengths = getattr(new, "lengths", lengths)
        else:
            ended = ended | finished
            lengths = lengths + ~ended
            if impute_finished:
                new = tree_map(lambda old, now, kept=ended: _kept(old, now, kept), states, new)
        states, finished = new, ended
        outputs.append(output)
        if max_step_num is not None and len(outputs) > max_step_num:
            break
    if not outputs:
        raise ValueError("the decoder is finished before its first step")
    whole = tree_map(lambda *each: torch.stack(each), outputs[0], *outputs[1:])
    with contextlib.suppress(NotImplementedError):
        whole, states = decoder.finalize(whole, states, lengths)
    if not output_time_major:
        whole = tree_map(lambda x: x.transpose(0, 1), whole)
    return (whole, states, lengths) if return_length else (whole, states)


def _kept(old: Tensor, now: Tensor, kept: Tensor) -> Tensor:
    """The former states of what is finished, the new ones of the rest."""
    return torch.where(kept.view(list(kept.shape) + [1] * (now.ndim - kept.ndim)), old, now)
