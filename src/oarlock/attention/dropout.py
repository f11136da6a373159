"""Dropout of attention weights from a counter-based hash: every backend drops the same pairs, in any order.

The uniform 32-bit number of the pair of row i and key j, in batch row b and query head h, is a hash of six integers.
All arithmetic wraps; ``>>`` shifts zeros in; indices are absolute::

    mix64(z):  z += 0x9E3779B97F4A7C15
               z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9
               z = (z ^ z >> 27) * 0x94D049BB133111EB
               return z ^ z >> 31

    head = mix64(mix64(mix64(seed) ^ offset) ^ (b << 32 | h))          64 bits, once per head
    row  = mix64(head ^ i)                                             64 bits, once per row
    x    = j * 0x9E3779B1 + (row & 0xFFFFFFFF)                         32 bits from here on
    x    = (x ^ x >> 16) * 0x7FEB352D
    x    = (x ^ x >> 15 ^ row >> 32) * 0x846CA68B
    x    =  x ^ x >> 16

The pair is kept where x >= round(p * 2^32), and its weight is multiplied by 1 / (1 - p). The log-sum-exp ignores
dropout.

Source: finalisers of SplitMix64 (Steele et al. 2014) and of Wellons' lowbias32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class Dropout:
    """Which weights a call drops: those whose hash is below ``threshold``.

    Args:
        probability: 0 < p < 1.
        seed, offset: 64-bit integers, read as unsigned.
    """

    probability: float
    seed: int
    offset: int

    @property
    def threshold(self) -> int:
        """Unsigned 32-bit: hashes from here on are kept."""
        return min(round(self.probability * 2**32), _WORD)

    @property
    def scale(self) -> float:
        """Factor of the kept weights."""
        return 1.0 / (1.0 - self.probability)

    def factors(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """What the weights are multiplied by, 0 or ``scale``: float32 [batch, heads, rows, keys], its ``shape``."""
        b, h, i, j = (
            torch.arange(n, device=device).view([-1 if d == e else 1 for e in range(4)]) for d, n in enumerate(shape)
        )
        bits = pair_bits(self.seed, self.offset, b, h, i, j)
        return (bits >= self.threshold).to(torch.float32) * self.scale


_generators: dict[str, torch.Generator] = {}


def name_generator(name: str, generator: torch.Generator) -> None:
    """Lets ``rng_name=name`` draw seeds from a generator on the CPU, say one with equal seeds on all tensor ranks."""
    _generators[name] = generator


def draw_seed_offset(rng_name: str = "") -> Tensor:
    """A fresh seed and offset from torch's generator or a named one: int64 [2] on the CPU.

    Activation checkpointing restores torch's generator, so that a recomputed call draws the same pair.
    """
    if rng_name and rng_name not in _generators:
        known = ", ".join(repr(name) for name in _generators) or "none"
        raise ValueError(f"rng_name {rng_name!r} is unknown; known: {known}; add it with dropout.name_generator")
    generator = _generators[rng_name] if rng_name else None
    return torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, generator=generator, device="cpu")


def pair_bits(seed: int, offset: int, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """The hash of the module's formula for broadcast int64 index tensors: int64 in [0, 2^32)."""
    key = _mix64(_mix64(torch.tensor(_signed(seed), device=j.device)) ^ _signed(offset))
    row = _mix64(_mix64(key ^ (b << 32 | h)) ^ i)
    x = (j * 0x9E3779B1 + (row & _WORD)) & _WORD
    x = ((x ^ x >> 16) * 0x7FEB352D) & _WORD
    x = ((x ^ x >> 15 ^ (row >> 32 & _WORD)) * 0x846CA68B) & _WORD
    return x ^ x >> 16


def _mix64(z: Tensor) -> Tensor:
    z = z + _signed(0x9E3779B97F4A7C15)
    z = (z ^ _shift(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """z >> bits with zeros shifted in; torch has no arithmetic on uint64."""
    return z >> bits & (2 ** (64 - bits) - 1)


def _signed(x: int) -> int:
    """The int64 with the bits of an unsigned 64-bit integer."""
    x &= 2**64 - 1
    return x - 2**64 if x >> 63 else x
