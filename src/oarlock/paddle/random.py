"""The state of random numbers."""

import torch as _torch

from oarlock.paddle.declare import exports as _exports

globals().update(
    {
        name: function
        for name, function in _exports("paddle").items()
        if name in ("seed", "get_rng_state", "set_rng_state", "get_cuda_rng_state", "set_cuda_rng_state")
    }
)


def initial_seed() -> int:
    """The seed that was set last, or drawn at the start."""
    return _torch.initial_seed()
