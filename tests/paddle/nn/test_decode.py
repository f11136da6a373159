"""Decoding: beams against all sequences, decoders of one's own, lengths."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from oarlock.paddle import nn
from oarlock.paddle.nn.decode import Decoder


def test_wide_beams_find_the_best_of_all_sequences() -> None:
    """With as many beams as sequences, the order is that of all log-probabilities."""
    torch.manual_seed(0)
    num_tokens, end, steps = 3, 1, 3
    cell = nn.GRUCell(4, 4)
    embedding, output = nn.Embedding(num_tokens, 4), nn.Linear(4, num_tokens)
    start = torch.randn(1, 4)

    def score(tokens: tuple[int, ...]) -> float:
        """The sum of log-probabilities until the end token."""
        h, before, total = start, 0, 0.0
        for token in tokens:
            _, h = cell(embedding(torch.tensor([before])), h)
            total += float(output(h).log_softmax(-1)[0, token])
            before = token
            if token == end:
                break
        return total

    with torch.no_grad():
        decoder = nn.BeamSearchDecoder(cell, 0, end, num_tokens**steps, embedding, output)
        found, states, lengths = nn.dynamic_decode(decoder, start, steps - 1, return_length=True)
        # What follows the end token is the end token.
        valid = [
            each
            for each in itertools.product(range(num_tokens), repeat=steps)
            if all(b == end for a, b in itertools.pairwise(each) if a == end)
        ]
        expected = sorted(valid, key=score, reverse=True)
        assert [tuple(beam) for beam in found[0].T.tolist()][: len(valid)] == expected
        torch.testing.assert_close(states.log_probs[0, : len(valid)], torch.tensor([score(each) for each in expected]))
        assert lengths[0, : len(valid)].tolist() == [each.index(end) + 1 if end in each else steps for each in expected]


class Countdown(Decoder):
    """Each sample counts down to zero; says at each step only who is at zero just then."""

    def initialize(self, inits: Tensor) -> Any:
        return inits, {"left": inits}, inits <= 0

    def step(self, time: Tensor, inputs: Tensor, states: Any, **kwargs: Any) -> Any:
        left = states["left"] - kwargs.get("by", 1)
        return (left * 10, time.expand(left.shape)), {"left": left}, left, left == 0


@pytest.mark.parametrize("impute", [True, False])
def test_what_was_finished_stays_so(impute: bool) -> None:
    """Lengths count the steps before the one that ended; states stand still where asked for."""
    (outputs, times), states, lengths = nn.dynamic_decode(
        Countdown(), torch.tensor([1, 3, 2]), impute_finished=impute, return_length=True
    )
    assert times.tolist() == [[0, 1, 2]] * 3
    assert lengths.tolist() == [0, 2, 1]
    assert states["left"].tolist() == ([1, 1, 1] if impute else [-2, 0, -1])
    assert outputs[1].tolist() == [20, 10, 0]


def test_steps_have_an_end() -> None:
    """`max_step_num` is the last step's number; further arguments go to the step; time first where asked for."""
    (outputs, _), _ = nn.dynamic_decode(Countdown(), torch.tensor([9, 8]), 1, output_time_major=True, by=2)
    assert outputs.tolist() == [[70, 60], [50, 40]]


def test_nothing_to_decode_is_an_error() -> None:
    """All finished before the first step."""
    with pytest.raises(ValueError, match="before its first step"):
        nn.dynamic_decode(Countdown(), torch.tensor([0]))
