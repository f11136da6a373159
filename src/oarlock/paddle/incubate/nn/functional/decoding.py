"""One step of generation. B sequences, H heads, D head size."""

from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.incubate.nn.functional.quantise import quantised

AT = "paddle.incubate.nn.functional"


@api(at=AT, out=False)
@torch.no_grad()
def masked_multihead_attention(
    x: Tensor,
    cache_kv: Tensor | None = None,
    bias: Tensor | None = None,
    src_mask: Tensor | None = None,
    cum_offsets: Tensor | None = None,
    sequence_lengths: Tensor | None = None,
    rotary_tensor: Tensor | None = None,
    beam_cache_offset: Tensor | None = None,
    qkv_out_scale: Tensor | None = None,
    out_shift: Tensor | None = None,
    out_smooth: Tensor | None = None,
    seq_len: int = 1,
    rotary_emb_dims: int = 0,
    use_neox_rotary_style: bool = False,
    compute_dtype: str = "default",
    out_scale: float = -1,
    quant_round_type: int = 1,
    quant_max_bound: float = 127.0,
    quant_min_bound: float = -127.0,
) -> tuple[Tensor, Tensor]:
    """Attention of one new token per sequence to itself and the tokens in the cache, which it joins.

    Args:
        x: [B, (H + 2·Hk)·D], query, key and value of the new tokens.
        cache_kv: [2, B, Hk, longest, D]; changed in place.
        bias: [3, H, D], added to `x` times `qkv_out_scale`.
        src_mask: [B, 1, 1, tokens], added to the scores; its length says how many tokens there are with the new one.
        sequence_lengths: int32 [B, 1], how many tokens each sequence has had; instead of the length of `src_mask`.
        out_scale: positive: the result, `(result + out_shift)·out_smooth`, is quantised to int8.

    Returns:
        ([B, H·D], the cache).

    Raises:
        ValueError: no cache or no length, or beams or a rotation.
    """
    options: dict[str, Any] = {"rotary_tensor": rotary_tensor, "beam_cache_offset": beam_cache_offset}
    refused = [name for name, option in options.items() if option is not None]
    if refused or rotary_emb_dims:
        raise ValueError(f"masked_multihead_attention takes no {', '.join(refused) or 'rotation'}")
    if cache_kv is None or (src_mask is None and sequence_lengths is None):
        raise ValueError("masked_multihead_attention needs cache_kv, and src_mask or sequence_lengths")
    batch, key_heads, longest, width = cache_kv.shape[1:]
    parts = x.reshape(batch, -1, width)
    parts = parts if qkv_out_scale is None else parts * qkv_out_scale.reshape(-1, width)
    parts = parts if bias is None else parts + bias.reshape(-1, width)
    heads = parts.shape[1] - 2 * key_heads
    q, k, v = parts.split([heads, key_heads, key_heads], 1)
    if sequence_lengths is not None:
        at = sequence_lengths.reshape(-1).long()
    else:
        assert src_mask is not None
        at = torch.full((batch,), src_mask.shape[-1] - 1, device=x.device)
    rows = torch.arange(batch, device=x.device)
    cache_kv[0, rows, :, at] = k.to(cache_kv.dtype)
    cache_kv[1, rows, :, at] = v.to(cache_kv.dtype)
    keys, values = (side.to(q.dtype).repeat_interleave(heads // key_heads, 1) for side in cache_kv)
    scores = torch.einsum("bhd,bhkd->bhk", q, keys) * width**-0.5
    scores = scores.masked_fill(torch.arange(longest, device=x.device) > at[:, None, None], float("-inf"))
    if src_mask is not None:
        scores[..., : src_mask.shape[-1]] += src_mask[:, 0, :, :].to(q.dtype)
    out = torch.einsum("bhk,bhkd->bhd", scores.softmax(-1), values).reshape(batch, heads * width)
    out = out if out_shift is None else out + out_shift
    out = out if out_smooth is None else out * out_smooth
    return quantised(out, out_scale, quant_round_type, quant_max_bound, quant_min_bound), cache_kv


@api(at=AT, out=False)
def blha_get_max_len(seq_lens_encoder: Tensor, seq_lens_decoder: Tensor, batch_size: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of the first lengths, as many as `batch_size` has elements, in either list: int32 [1] each."""
    count = batch_size.shape[0]
    return seq_lens_encoder.reshape(-1)[:count].max().reshape(1), seq_lens_decoder.reshape(-1)[:count].max().reshape(1)
