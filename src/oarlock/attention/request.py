"""What a backend is asked for: where backends register, the options of a call, and what decides whether they apply.

Legend: B batch, Sq query rows, Sk keys, Hq/Hk query and key heads, Hm mask heads, D and Dv head dims of Q/K and V.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from oarlock.attention.dropout import Dropout
from oarlock.attention.masks import ColumnMask

OP = "flashmask_attention"
"""Name of the operation in the registry of providers.

A provider is called without autograd as ``f(query, key, value, options) -> (out, lse)`` with query [B, Sq, Hq, D], key
[B, Sk, Hk, D], value [B, Sk, Hk, Dv] of one dtype and any strides, and :class:`Options`. It returns new tensors: out
[B, Sq, Hq, Dv] in that dtype, and the natural-log lse [B, Hq, Sq] (float64 for float64 inputs, else float32); a row
without visible keys has out 0 and lse -inf. A NaN or an infinity reaches only rows that see it, whatever their scale.
"""

BACKWARD = "flashmask_attention_backward"
"""The gradients, from the provider of the same name, or from any other if there is none.

Called as ``f(grad_out, grad_lse, query, key, value, out, lse, options) -> (dq, dk, dv)`` with the arguments and results
of the forward; grad_lse is None where nothing arrives there. With a sink, ``lse`` includes it (but is -inf for a row
without keys all the same) and grad_lse arrives at that: who computes P = exp(scale * Q K^T - lse) and
dS = P * (dO V^T - rowsum(dO * O) + dlse) need not know of the sink.
"""


@dataclass(frozen=True, eq=False)
class Options:
    """All that belongs to a call besides query, key and value.

    Args:
        mask: on their device, with batch 1 or B and 1, Hk or Hq heads.
        scale: factor of the scores.
        block_mask: bool [B or 1, Hm, ceil(Sq / 128), ceil(Sk / 128)], True keeps; None keeps all.
        dropout: which weights are dropped.
        deterministic: equal inputs must give equal bits, forward and backward.
        sink: [Hq] in the dtype of lse, one more logit per head without a value. Only a forward that is marked by
            :func:`takes_sink` gets it, and a backward.
    """

    mask: ColumnMask
    scale: float
    block_mask: Tensor | None = None
    dropout: Dropout | None = None
    deterministic: bool = False
    sink: Tensor | None = None


@dataclass(frozen=True)
class AttentionRequest:
    """The properties of a call that decide which backends apply."""

    device: torch.device
    dtype: torch.dtype
    has_block_mask: bool = False
    has_dropout: bool = False
    is_decoding: bool = False
    """Few query rows."""
    head_dim: int = 64
    """D, of query and key."""
    value_dim: int = 64
    """Dv."""
    deterministic: bool = False


Function = TypeVar("Function", bound=Callable[..., Any])
_takes_sink: set[Callable[..., Any]] = set()


def takes_sink(function: Function) -> Function:
    """Marks a forward that divides by the sink's term itself: its out includes ``options.sink``, its lse does not.

    All others get no sink, and their out is rescaled.
    """
    _takes_sink.add(function)
    return function


def applies_sink(function: Callable[..., Any]) -> bool:
    """Whether a forward is marked by :func:`takes_sink`."""
    return function in _takes_sink
