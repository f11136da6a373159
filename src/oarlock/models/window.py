"""The sliding window of a layer, laid over the mask of the batch."""

import torch

from oarlock.attention import ColumnMask


def with_window(mask: ColumnMask, window: int | None) -> ColumnMask:
    """The pairs of `mask` whose row is less than `window` positions after its key; `mask` itself for None.

    Row i stands at position i + Sk - Sq (bottom-right alignment, as in a KV cache).

    Raises:
        ValueError: a mask that is not causal, or one whose hidden rows and the window's do not form one interval.
    """
    if window is None:
        return mask
    return mask.cached(("window", window), lambda: _windowed(mask, window))


def _windowed(mask: ColumnMask, window: int) -> ColumnMask:
    if not mask.causal:
        raise ValueError("a layer with a sliding window needs a causal mask; got a mask with causal=False")
    key_K = torch.arange(mask.seqlen_k, device=mask.bounds.device, dtype=torch.int32)
    first_hidden_K = key_K - (mask.seqlen_k - mask.seqlen_q) + window
    start = mask.bounds[..., 0]
    if mask.bounds.shape[3] == 2:
        end = mask.bounds[..., 1]
        is_empty = start >= end
        if not bool((is_empty | (end >= first_hidden_K) | (end >= mask.seqlen_q)).all()):
            raise ValueError(
                f"sliding window {window} and a mask that shows a key again after hiding it (two bounds per key) "
                "do not fit one column mask"
            )
        start = start.masked_fill(is_empty, mask.seqlen_q)
    return ColumnMask(torch.minimum(start, first_hidden_K).unsqueeze(-1).contiguous(), True, mask.seqlen_q)
