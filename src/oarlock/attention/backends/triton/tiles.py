"""Sizes of the tiles that the kernels work on, by head dim and dtype.

The first of a list is the fastest we know of for an H100 or H200; the others need less shared memory, for devices that
have less. Interpreted kernels always take the same small tiles.
"""

from dataclasses import dataclass

import torch
import triton

from oarlock.attention.backends.triton.mask import sees

INTERPRETED = not isinstance(sees, triton.JITFunction)
"""Whether Triton runs kernels in Python on the CPU: TRITON_INTERPRET=1 was set when it was imported."""


@dataclass(frozen=True)
class Tiles:
    """One way to launch a kernel."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


_INTERPRETED = Tiles(64, 64, 1, 1)

# By padded head dim, the larger of D and Dv.
_HALF = {
    "forward": {
        64: [Tiles(128, 128, 8, 3), Tiles(128, 64, 4, 2), Tiles(64, 32, 4, 1)],
        128: [Tiles(128, 64, 8, 3), Tiles(64, 64, 4, 2), Tiles(64, 32, 4, 1)],
        256: [Tiles(128, 64, 8, 2), Tiles(128, 32, 8, 1), Tiles(32, 32, 4, 1)],
    },
    "dq": {
        64: [Tiles(128, 64, 8, 3), Tiles(64, 64, 4, 2), Tiles(64, 32, 4, 1)],
        128: [Tiles(128, 64, 8, 3), Tiles(64, 64, 4, 2), Tiles(64, 32, 4, 1)],
        256: [Tiles(128, 32, 8, 2), Tiles(64, 32, 8, 1), Tiles(32, 32, 4, 1)],
    },
    "dkv": {
        64: [Tiles(64, 128, 8, 3), Tiles(64, 64, 4, 2), Tiles(32, 64, 4, 1)],
        128: [Tiles(64, 128, 8, 2), Tiles(64, 64, 4, 2), Tiles(32, 64, 4, 1)],
        256: [Tiles(32, 64, 8, 2), Tiles(32, 64, 8, 1), Tiles(32, 32, 4, 1)],
    },
}
_FULL = {
    "forward": {
        64: [Tiles(64, 32, 4, 2), Tiles(32, 32, 4, 1)],
        128: [Tiles(64, 32, 4, 2), Tiles(32, 32, 4, 1)],
        256: [Tiles(64, 32, 8, 1), Tiles(32, 16, 4, 1)],
    },
    "dq": {
        64: [Tiles(32, 32, 4, 2), Tiles(32, 32, 4, 1)],
        128: [Tiles(32, 32, 4, 2), Tiles(32, 16, 4, 1)],
        256: [Tiles(32, 32, 8, 1), Tiles(16, 16, 4, 1)],
    },
    "dkv": {
        64: [Tiles(32, 32, 4, 2), Tiles(32, 32, 4, 1)],
        128: [Tiles(32, 32, 4, 2), Tiles(16, 32, 4, 1)],
        256: [Tiles(32, 32, 8, 1), Tiles(16, 16, 4, 1)],
    },
}


def candidates(kernel: str, block_d: int, dtype: torch.dtype) -> list[Tiles]:
    """What to try for ``kernel`` ("forward", "dq" or "dkv"), best first."""
    if INTERPRETED:
        return [_INTERPRETED]
    table = (_FULL if dtype == torch.float32 else _HALF)[kernel]
    return table[max(64, block_d)]


def padded(dim: int) -> int:
    """The power of two that holds a head dim; the tensor cores need 16."""
    return max(16, 1 << (dim - 1).bit_length())
