"""Attention of [batch, sequence, heads, head size]."""

import torch.nn.functional as F
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.nn.functional.extents import AT


@api(at=AT)
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    training: bool = True,
    backend: str | None = None,
    scale: float | None = None,
    enable_gqa: bool = True,
) -> Tensor:
    """`softmax(query·keyᵀ·scale + mask)·value` of [batch, sequence, heads, head size].

    torch has heads before sequence.
    """
    made = F.scaled_dot_product_attention(
        query.transpose(-3, -2),
        key.transpose(-3, -2),
        value.transpose(-3, -2),
        None if is_causal else attn_mask,  # Paddle lets the causal mask take the place of another
        dropout_p if training else 0.0,
        is_causal,
        scale=scale,
        enable_gqa=enable_gqa and query.shape[-2] != key.shape[-2],
    )
    return made.transpose(-3, -2)
