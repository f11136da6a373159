"""What a backend must know about a call to decide whether it applies, and where backends register."""

from __future__ import annotations

from dataclasses import dataclass

import torch

OP = "flashmask_attention"
"""Name of the operation in the registry of providers.

A provider is called without autograd as ``f(query, key, value, mask, *, scale, block_mask, dropout) -> (out, lse)``
with query [B, Sq, Hq, D], key [B, Sk, Hk, D], value [B, Sk, Hk, Dv] of one dtype and any strides, a ColumnMask on their
device with batch 1 or B and 1, Hk or Hq heads, block_mask None or bool [B or 1, Hm, ceil(Sq / 128), ceil(Sk / 128)]
(True = keep), and dropout None or a :class:`~oarlock.attention.dropout.Dropout`. It returns new tensors: out
[B, Sq, Hq, Dv], and the natural-log lse [B, Hq, Sq] (float64 for float64 inputs, else float32); a row without visible
keys has out 0 and lse -inf.
"""

BACKWARD = "flashmask_attention_backward"
"""The gradients, from the provider of the same name.

Called as ``f(grad_out, grad_lse, query, key, value, out, lse, mask, *, scale, block_mask, dropout) -> (dq, dk, dv)``
with the arguments and results of the forward; grad_lse is None where nothing arrives there.
"""


@dataclass(frozen=True)
class AttentionRequest:
    """The properties of a call that decide which backends apply."""

    device: torch.device
    dtype: torch.dtype
    has_block_mask: bool = False
    has_dropout: bool = False
    is_decoding: bool = False
    """Few rows and no gradients wanted."""
