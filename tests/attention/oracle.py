"""The definition of a column mask and of masked attention, dense and in float64, and random masks to compare on."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from oarlock.attention import ColumnMask

LAYOUTS = [(1, True), (2, True), (2, False), (4, False)]


def visible_pairs(bounds: Tensor, causal: bool, seqlen_q: int) -> Tensor:
    """bool [B, Hm, Sq, Sk], one pair at a time from the table of the format."""
    batch, heads, seqlen_k, num_bounds = bounds.shape
    visible = torch.zeros(batch, heads, seqlen_q, seqlen_k, dtype=torch.bool)
    for b in range(batch):
        for h in range(heads):
            for j, r in enumerate(bounds[b, h].tolist()):
                for i in range(seqlen_q):
                    if num_bounds == 1:
                        hidden = i >= r[0]
                    elif num_bounds == 2:
                        hidden = r[0] <= i < r[1] if causal else i >= r[0] or i < r[1]
                    else:
                        hidden = r[0] <= i < r[1] or r[2] <= i < r[3]
                    visible[b, h, i, j] = not (hidden or (causal and i < j - (seqlen_k - seqlen_q)))
    return visible


def dense_attention(query: Tensor, key: Tensor, value: Tensor, visible: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """out [B, Sq, Hq, Dv] and lse [B, Hq, Sq] in float64, rows without keys 0 and -inf; plain autograd."""
    num_heads = query.shape[2]
    q, k, v = (x.double().transpose(1, 2) for x in (query, key, value))
    k, v = (x.repeat_interleave(num_heads // x.shape[1], dim=1) for x in (k, v))
    visible = visible.repeat_interleave(num_heads // visible.shape[1], dim=1)
    # exp(s - m) where visible; m is a constant that only keeps the numbers small
    scores = q @ k.mT * scale
    top = scores.detach().masked_fill(~visible, -torch.inf).amax(-1, keepdim=True).clamp(min=-1e300)
    weight = torch.where(visible, torch.exp(torch.where(visible, scores - top, 0.0)), 0.0)
    total = weight.sum(-1, keepdim=True)
    seen = total > 0
    safe_total = torch.where(seen, total, 1.0)
    lse = torch.where(seen, safe_total.log() + torch.where(seen, top, 0.0), -torch.inf).squeeze(-1)
    return (weight / safe_total @ v).transpose(1, 2), lse


@st.composite
def column_masks(draw: st.DrawFn, max_rows: int, batch: int = 1, heads: tuple[int, ...] = (1,)) -> ColumnMask:
    """Any spelling of the intervals: empty, reversed, negative, beyond the rows, overlapping, swapped."""
    num_bounds, causal = draw(st.sampled_from(LAYOUTS))
    seqlen_q, seqlen_k = draw(st.integers(1, max_rows)), draw(st.integers(1, max_rows))
    shape = (batch, draw(st.sampled_from(heads)), seqlen_k, num_bounds)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    bounds = torch.randint(-3, seqlen_q + 4, shape, generator=generator)
    run = draw(st.sampled_from([1, 1, 7, 40]))  # neighbours with equal bounds, as real masks have
    bounds = bounds[:, :, torch.arange(seqlen_k) // run * run]
    return ColumnMask(bounds.int(), causal, seqlen_q)
