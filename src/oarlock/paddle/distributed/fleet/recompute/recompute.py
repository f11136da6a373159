"""Recompute a part of the forward pass in the backward pass instead of keeping what it saved."""

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.checkpoint import checkpoint


def recompute(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`function(*args, **kwargs)` whose inner values are recomputed in backward; the random state is the same again.

    Args:
        kwargs: those of the function, and Paddle's `use_reentrant` (taken, never needed: recomputation here does not
            nest backward passes, so keywords and inputs without gradients work) and `preserve_rng_state`.

    Raises:
        ValueError: `offload_indices`: planned offloading is `oarlock.memory.offload`, which chooses by measurement.
    """
    kwargs.pop("use_reentrant", None)
    offloaded: Sequence[int] = kwargs.pop("offload_indices", ())
    if offloaded:
        raise ValueError(f"offload_indices={list(offloaded)} is not taken; use oarlock.memory.offload on the model")
    preserve = kwargs.pop("preserve_rng_state", True)
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve, **kwargs)
