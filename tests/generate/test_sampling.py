"""Oracle: the logits processors of transformers."""

import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from oarlock.generate.sampling import Sampler, Sampling, filter_logits

CASES = [
    Sampling(),
    Sampling(temperature=0.3),
    Sampling(temperature=1.7, top_k=5),
    Sampling(top_k=1),
    Sampling(top_k=10_000),
    Sampling(top_p=0.9),
    Sampling(temperature=2.0, top_p=0.01),
    Sampling(temperature=0.8, top_k=50, top_p=0.7),
    Sampling(min_p=0.2),
    Sampling(min_p=1.0),
    Sampling(temperature=1.3, top_k=40, top_p=0.95, min_p=0.05),
]


def _warped(logits, sampling):
    """The chain that transformers' generate builds."""
    warpers = [TemperatureLogitsWarper(sampling.temperature)] if sampling.temperature != 1 else []
    warpers += [TopKLogitsWarper(sampling.top_k)] if sampling.top_k is not None else []
    warpers += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
    warpers += [MinPLogitsWarper(sampling.min_p)] if sampling.min_p > 0 else []
    for warper in warpers:
        logits = warper(None, logits)
    return logits


@pytest.mark.parametrize("sampling", CASES, ids=str)
def test_filters_equal_transformers(sampling):
    # float64: where a sum of probabilities falls on the other side of p by rounding, the sets would differ.
    logits = torch.randn(64, 900, dtype=torch.float64) * torch.tensor([[0.3], [1], [3], [6]]).repeat(16, 1)
    ours, theirs = filter_logits(logits, sampling), _warped(logits, sampling)
    assert torch.equal(ours.isinf(), theirs.isinf())
    torch.testing.assert_close(ours, theirs)
    assert (ours > -torch.inf).any(dim=-1).all()


@pytest.mark.parametrize("sampling", CASES, ids=str)
def test_tied_logits_are_kept_or_dropped_together(sampling):
    logits = torch.randint(0, 4, (32, 100)).float()
    kept = filter_logits(logits, sampling) > -torch.inf
    for row in range(32):
        for level in range(4):
            members = kept[row][logits[row] == level]
            assert members.all() or not members.any()
    if sampling.top_p == 1:
        assert torch.equal(kept, _warped(logits, sampling) > -torch.inf)


def test_input_is_not_changed():
    logits = torch.randn(3, 20)
    before = logits.clone()
    filter_logits(logits, Sampling(temperature=0.5, top_k=3, top_p=0.5, min_p=0.1))
    assert torch.equal(logits, before)


def _draws(logits, sampling, count, seed=0):
    sampler = Sampler(sampling, [[]], [seed], num_tokens=logits.shape[-1])
    return torch.cat([sampler(logits) for _ in range(count)])


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7, top_k=6), Sampling(top_p=0.8)], ids=str)
def test_frequencies_follow_the_distribution(sampling):
    logits = torch.randn(1, 12)
    count = 4000
    frequency = _draws(logits, sampling, count).bincount(minlength=12) / count
    expected = filter_logits(logits, sampling).softmax(-1)[0]
    # Five standard deviations of a binomial share.
    assert ((frequency - expected).abs() <= 5 * (expected * (1 - expected) / count).sqrt()).all()
    assert (frequency[expected == 0] == 0).all()


def test_rows_draw_independently_of_their_neighbours():
    logits = torch.randn(4, 50)
    sampling = Sampling(top_p=0.95)
    batch = Sampler(sampling, [[]] * 4, [3, 4, 3, 5], num_tokens=50)
    alone = [Sampler(sampling, [[]], [seed], num_tokens=50) for seed in (3, 4, 3, 5)]
    for _ in range(20):
        expected = torch.cat([sampler(logits[row : row + 1]) for row, sampler in enumerate(alone)])
        assert torch.equal(batch(logits), expected)
    batch.reorder([2, 0])  # a finished row takes its generator along
    for _ in range(20):
        expected = torch.cat([alone[2](logits[2:3]), alone[0](logits[:1])])
        assert torch.equal(batch(logits[[2, 0]]), expected)


def test_equal_seeds_draw_equal_tokens_and_others_do_not():
    logits = torch.zeros(1, 1000)
    assert torch.equal(_draws(logits, Sampling(), 30, seed=7), _draws(logits, Sampling(), 30, seed=7))
    assert not torch.equal(_draws(logits, Sampling(), 30, seed=7), _draws(logits, Sampling(), 30, seed=8))


def test_greedy_takes_the_maximum():
    logits = torch.randn(5, 30, dtype=torch.bfloat16)
    greedy = Sampler(Sampling(temperature=0), [[]] * 5, range(5), num_tokens=30)
    assert torch.equal(greedy(logits), logits.argmax(-1))


def test_repetition_penalty_equals_transformers():
    prompts = [[1, 5, 5, 9], [2, 3, 3, 3]]
    greedy = Sampler(Sampling(temperature=0, repetition_penalty=1.8), prompts, [0, 0], num_tokens=12)
    history = torch.tensor(prompts)
    for _ in range(8):
        logits = torch.randn(2, 12)
        expected = RepetitionPenaltyLogitsProcessor(1.8)(history, logits.clone()).argmax(-1)
        token = greedy(logits)
        assert torch.equal(token, expected)
        history = torch.cat([history, token[:, None]], 1)
    greedy.reorder([1])
    logits = torch.randn(1, 12)
    expected = RepetitionPenaltyLogitsProcessor(1.8)(history[1:], logits.clone()).argmax(-1)
    assert torch.equal(greedy(logits), expected)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"temperature": -1.0}, "temperature must be .* got -1.0"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": 0}, "top_k must be at least 1 .* got 0"),
        ({"top_p": 0.0}, "top_p must be above 0 .* got 0.0"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
    ],
)
def test_settings_out_of_range_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**setting)
