"""Attention over the pairs that a sparse mask stores."""

import math

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.sparse.entries import check_sparse, places_of
from oarlock.paddle.sparse.nn.functional.activation import AT, softmax_of_rows


@api(at=AT, out=False)
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_mask: Tensor,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
) -> Tensor:
    """`softmax(Q·K' / sqrt(D)) V` over the stored pairs of `sparse_mask`, whose values do not matter.

    Args:
        query: [B, H, S, D]; key and value of the same shape.
        sparse_mask: [B·H, S, S], CSR or COO.
        key_padding_mask: [B, S]; a key with 0 is not seen.
        attn_mask: [S, S]; a pair with 0 is not seen.

    Returns:
        [B, H, S, D]; a row that sees nothing is 0.
    """
    check_sparse(sparse_mask, "nn.functional.attention")
    batch, heads, length, width = query.shape
    if sparse_mask.shape != (batch * heads, length, length):
        expected = [batch * heads, length, length]
        raise ValueError(f"sparse_mask must be of shape {expected}, not {list(sparse_mask.shape)}")
    pair, row, column = places_of(sparse_mask)
    q, k, v = (x.reshape(batch * heads, length, -1) for x in (query, key, value))
    scores = (q[pair, row] * k[pair, column]).sum(-1) / math.sqrt(width)
    seen = torch.ones_like(scores, dtype=torch.bool)
    if key_padding_mask is not None:
        seen = seen & (key_padding_mask[pair // heads, column] != 0)
    if attn_mask is not None:
        seen = seen & (attn_mask[row, column] != 0)
    at = pair * length + row
    weights = softmax_of_rows(scores.masked_fill(~seen, -torch.inf), at, batch * heads * length)
    made = v.new_zeros(batch * heads * length, v.shape[-1]).index_add(0, at, weights[:, None] * v[pair, column])
    return made.reshape(batch, heads, length, -1)
