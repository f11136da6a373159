"""The keyword arguments of the attention functions, for type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from torch import Tensor

if TYPE_CHECKING:
    from oarlock.attention.context_parallel import ContextPlan


class CommonKeywords(TypedDict, total=False):
    """What :func:`~oarlock.attention.flashmask_attention` and its packed form both take, but for what they return."""

    dropout: float
    fixed_seed_offset: Tensor | None
    rng_name: str
    training: bool
    name: str | None
    softmax_scale: float | None
    block_mask: Tensor | None
    learnable_sink: Tensor | None
    deterministic: bool | None
    backend: str


class Keywords(CommonKeywords, total=False):
    """What only the form with a batch takes."""

    causal: bool
    window_size: int | tuple[int, int] | None
    plan: ContextPlan | None
