"""The hash behind dropout: the documented bits, and numbers that look independent."""

import pytest
import torch

from oarlock.attention.dropout import Dropout, pair_bits

M32, M64 = 2**32 - 1, 2**64 - 1


def mix64(z):
    z = (z + 0x9E3779B97F4A7C15) & M64
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & M64
    return z ^ z >> 31


def bits(seed, offset, b, h, i, j):
    """The formula in Python's unbounded integers."""
    row = mix64(mix64(mix64(mix64(seed) ^ offset) ^ (b << 32 | h)) ^ i)
    x = (j * 0x9E3779B1 + (row & M32)) & M32
    x = ((x ^ x >> 16) * 0x7FEB352D) & M32
    x = ((x ^ x >> 15 ^ row >> 32) * 0x846CA68B) & M32
    return x ^ x >> 16


@pytest.mark.parametrize(("seed", "offset"), [(0, 0), (7, 2**63 + 5), (2**64 - 1, 2**64 - 3), (2**62 + 1, 9)])
def test_the_bits_are_those_of_the_formula(seed, offset):
    index = torch.tensor([[0, 0, 0, 0], [1, 2, 3, 4], [5, 0, 70_000, 2**20 + 3], [0, 63, 2**31 + 7, 2**31 + 1]])
    got = pair_bits(seed, offset, *index.unbind(1)).tolist()
    assert got == [bits(seed, offset, *row) for row in index.tolist()]


def test_splitmix64_has_its_published_value():
    assert mix64(0) == 0xE220A8397B1DCDAF  # first output of SplitMix64 with seed 0


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_the_share_of_kept_pairs(probability, device):
    keep = Dropout(probability, 3, 4).factors((2, 4, 256, 256), device) > 0
    sigma = (probability * (1 - probability)) ** 0.5
    for dims in ((0, 1, 2, 3), (2, 3), (0, 1, 2), (0, 1, 3)):  # of all, of a head, of a key, of a row
        share = keep.double().mean(dims)
        num = keep.numel() / share.numel()
        assert ((share - (1 - probability)).abs() < 5.5 * sigma / num**0.5).all()


def test_rows_keys_heads_and_seeds_are_uncorrelated(device):
    x = Dropout(0.5, 11, 0).factors((2, 3, 256, 256), device).flatten(0, 1) - 1
    other = Dropout(0.5, 11, 1).factors((2, 3, 256, 256), device).flatten(0, 1) - 1
    neighbours = [(x[:, 1:], x[:, :-1]), (x[:, :, 1:], x[:, :, :-1]), (x[:, 1:, 1:], x[:, :-1, :-1])]
    for a, b in [*neighbours, (x[1:], x[:-1]), (x[:, 64:], x[:, :-64]), (x, other)]:
        assert (a * b).mean().abs() < 5 / a.numel() ** 0.5
    upper = torch.ones(256, 256, device=device).triu(1).bool()
    transposed = (x * x.mT)[:, upper]
    assert transposed.mean().abs() < 5 / transposed.numel() ** 0.5
