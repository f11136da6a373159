"""CPU attention over the visible rectangles only, each computed by ATen's flash kernel.

The forward merges the segments of a row tile by their log-sum-exp. The backward needs no merge: with the out and lse of
the whole row, the kernel's gradient of a segment is that segment's share. A gradient arriving at lse is an extra value
dimension: dS = P * (dO V^T - rowsum(dO * O) + dlse), so V gets a column of ones, dO gets dlse there and O gets 0.

Legend: B batch, S sequence, H heads, D head dim, Q/K rows and keys of one segment.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.attention.block_plan import block_plan
from oarlock.attention.finite import all_finite, clean, gradients_of_finite, has_nan
from oarlock.attention.plan import Bias, Kind, RowTile, Segment, TilePlan, tile_plan
from oarlock.attention.request import BACKWARD, OP, AttentionRequest, Options
from oarlock.providers import register

# Private ops: a torch without them is refused below, and the reference takes over.
_FORWARD: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_BACKWARD: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)
FEW_KEYS = 64
"""Without a mask and with less than a vector of keys, the kernel gives 0 where it should give NaN."""
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def _refuse(request: AttentionRequest) -> str | None:
    if request.device.type != "cpu":
        return f"runs on the CPU, the tensors are on {request.device}"
    if _FORWARD is None or _BACKWARD is None:
        return f"torch {torch.__version__} has no CPU flash-attention op"
    if request.dtype not in _DTYPES:
        return f"needs float32, float64, bfloat16 or float16, got {request.dtype}"
    if request.has_dropout:
        return "does not drop weights"
    return None


@register(OP, "aten", priority=10, refuse=_refuse)
def aten(query: Tensor, key: Tensor, value: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """Attention by row tiles."""
    assert options.dropout is None
    plan = _plan(options)
    out, lse = _forward(query, key, value, plan, options.scale)
    # A row whose scores are all -inf looks to the kernel like one without keys.
    if has_nan(out, lse) or not all_finite(query, key):
        cleaned = clean(query, key, value, options.mask, options.block_mask)
        out, lse = _forward(cleaned.query, cleaned.key, cleaned.value, plan, options.scale)
        out = out.masked_fill(cleaned.poisoned[..., None], float("nan"))
        lse = lse.masked_fill(cleaned.poisoned.transpose(1, 2), float("nan"))
    return out, lse


@register(BACKWARD, "aten", priority=10, refuse=_refuse)
def aten_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    options: Options,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by row tiles, in float32 for half dtypes, whose CPU kernel is far slower."""
    assert options.dropout is None
    plan = _plan(options)
    backward = functools.partial(_backward, plan=plan, scale=options.scale)
    arguments = (grad_out, grad_lse, query, key, value, out, lse)
    gradients = backward(*arguments)
    if has_nan(*gradients):
        gradients = gradients_of_finite(backward, *arguments, options.mask, options.block_mask)
    return gradients


def _plan(options: Options) -> TilePlan:
    mask, block_mask = options.mask, options.block_mask
    return tile_plan(mask) if block_mask is None else block_plan(mask, block_mask)


@dataclass(frozen=True, slots=True)
class _Part:
    """Batch rows and heads that share the tiles of one mask."""

    index: int
    tiles: list[RowTile]
    batch: tuple[int, int]
    q_heads: tuple[int, int]
    k_heads: tuple[int, int]

    def of_queries(self, x_BHSD: Tensor) -> Tensor:
        return _part(x_BHSD, self.batch, self.q_heads)

    def of_keys(self, x_BHSD: Tensor) -> Tensor:
        return _part(x_BHSD, self.batch, self.k_heads)


def _part(x: Tensor, batch: tuple[int, int], heads: tuple[int, int]) -> Tensor:
    return x[batch[0] : batch[1], heads[0] : heads[1]]


def _parts(plan: TilePlan, batch: int, num_heads_q: int, num_heads_k: int) -> Iterator[_Part]:
    mask = plan.mask
    if len(plan.tiles) == 1:
        yield _Part(0, plan.tiles[0], (0, batch), (0, num_heads_q), (0, num_heads_k))
        return
    for index, tiles in enumerate(plan.tiles):
        row, head = divmod(index, mask.num_heads)
        rows = (0, batch) if mask.batch == 1 else (row, row + 1)
        q_heads = (head * num_heads_q // mask.num_heads, (head + 1) * num_heads_q // mask.num_heads)
        # With a mask per query head, several parts share one key head.
        k_begin = head * num_heads_k // mask.num_heads
        k_heads = (k_begin, max(k_begin + 1, (head + 1) * num_heads_k // mask.num_heads))
        yield _Part(index, tiles, rows, q_heads, k_heads)


def _rows(x_BHSD: Tensor, span: tuple[int, int]) -> Tensor:
    return x_BHSD.narrow(2, span[0], span[1] - span[0])


def _heads_first(x_BSHD: Tensor, head_dim: int, dtype: torch.dtype) -> Tensor:
    """[B, H, S, head_dim] with unit stride in the last dim, which is all that the kernel asks for."""
    x = x_BSHD.to(dtype)
    if x.shape[-1] < head_dim:
        x = F.pad(x, (0, head_dim - x.shape[-1]))
    elif x.stride(-1) != 1:
        x = x.contiguous()
    return x.transpose(1, 2)


def _new(like_BSHD: Tensor, head_dim: int, *, is_covered: bool, dtype: torch.dtype | None = None) -> Tensor:
    """[B, S, H, head_dim] to write to; zeros where the tiles do not write every entry first."""
    make = like_BSHD.new_empty if is_covered else like_BSHD.new_zeros
    return make((*like_BSHD.shape[:3], head_dim), dtype=dtype)


def _kind(segment: Segment) -> Kind:
    return segment.kind if segment.keys[1] - segment.keys[0] >= FEW_KEYS else Kind.PARTIAL


def _bias(plan: TilePlan, index: int, tile: RowTile, segment: Segment, dtype: torch.dtype) -> Bias | None:
    if _kind(segment) is not Kind.PARTIAL:
        return None
    # The kernel takes float32 beside half dtypes, but silently misreads it beside float64.
    return plan.bias(index, tile, segment, torch.promote_types(dtype, torch.float32))


def _tile_forward(
    plan: TilePlan, index: int, tile: RowTile, q_BHQD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """out [B, H, Q, D] and lse [B, H, Q] of one row tile."""
    out = lse = None
    for segment in tile.segments:
        bias = _bias(plan, index, tile, segment, q_BHQD.dtype)
        out_s, lse_s = _FORWARD(
            *(q_BHQD, _rows(k_BHSD, segment.keys), _rows(v_BHSD, segment.keys), 0.0, _kind(segment) is Kind.CAUSAL),
            attn_mask=None if bias is None else bias.values,
            scale=scale,
        )
        blind_rows = None if bias is None else bias.blind_rows
        if blind_rows is not None:
            lse_s = lse_s.masked_fill(blind_rows, float("-inf"))  # the kernel says 0
        if out is None or lse is None:
            out, lse = out_s, lse_s
            continue
        weight = torch.sigmoid(lse_s - lse)
        if blind_rows is not None:
            weight = weight.masked_fill(blind_rows, 0)  # where both are -inf
        out = torch.lerp(out.to(lse.dtype), out_s.to(lse.dtype), weight[..., None])
        lse = torch.logaddexp(lse, lse_s)
    assert out is not None
    assert lse is not None
    return out, lse


def _tile_backward(
    plan: TilePlan,
    index: int,
    tile: RowTile,
    of_rows: list[Tensor],
    of_keys: list[Tensor],
    *,
    keys_once: bool,
    scale: float,
) -> None:
    """Writes dQ (in ``of_rows``) of one row tile and adds its shares of dK and dV (in ``of_keys``)."""
    do_t, q_t, o_t, lse_t, dq_t = of_rows
    for segment in tile.segments:
        k_s, v_s, dk_s, dv_s = (_rows(x, segment.keys) for x in of_keys)
        bias = _bias(plan, index, tile, segment, q_t.dtype)
        shares = _BACKWARD(
            *(do_t, q_t, k_s, v_s, o_t, lse_t, 0.0, _kind(segment) is Kind.CAUSAL),
            attn_mask=None if bias is None else bias.values,
            scale=scale,
        )
        (dq_t.copy_ if segment is tile.segments[0] else dq_t.add_)(shares[0])
        for total, share in ((dk_s, shares[1]), (dv_s, shares[2])):
            (total.copy_ if keys_once else total.add_)(share)


def _forward(query: Tensor, key: Tensor, value: Tensor, plan: TilePlan, scale: float) -> tuple[Tensor, Tensor]:
    batch, seqlen_q, num_heads, head_dim = query.shape
    # Fast for bfloat16 as it is; half precision has no fast CPU kernel.
    dtype = torch.float32 if query.dtype == torch.float16 else query.dtype
    width, value_dim = max(head_dim, value.shape[3]), value.shape[3]
    q, k, v = (_heads_first(x, width, dtype) for x in (query, key, value))
    if scale <= 0:  # the kernel multiplies the -inf of hidden pairs by the scale
        q, scale = (-q, -scale) if scale < 0 else (q * 0, 1.0)
    if plan.single in (Kind.FULL, Kind.CAUSAL) and key.shape[1] >= FEW_KEYS:
        out_BHSD, lse = _FORWARD(q, k, v, 0.0, plan.single is Kind.CAUSAL, scale=scale)
        return out_BHSD.transpose(1, 2)[..., :value_dim].to(query.dtype), lse
    out = _new(query, value_dim, is_covered=plan.covers_rows)
    lse_dtype = torch.promote_types(dtype, torch.float32)
    lse = q.new_full((batch, num_heads, seqlen_q), float("-inf"), dtype=lse_dtype)
    out_BHSD = out.transpose(1, 2)
    for part in _parts(plan, batch, num_heads, key.shape[2]):
        q_p, k_p, v_p = part.of_queries(q), part.of_keys(k), part.of_keys(v)
        out_p, lse_p = part.of_queries(out_BHSD), part.of_queries(lse)
        for tile in part.tiles:
            out_tile, lse_tile = _tile_forward(plan, part.index, tile, _rows(q_p, tile.rows), k_p, v_p, scale)
            _rows(out_p, tile.rows).copy_(out_tile[..., :value_dim])
            _rows(lse_p, tile.rows).copy_(lse_tile)
    return out, lse


def _backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    plan: TilePlan,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.promote_types(query.dtype, torch.float32)
    head_dim, value_dim = query.shape[3], value.shape[3]
    width = max(head_dim, value_dim + (grad_lse is not None))
    q, k, v, o, do = (_heads_first(x, width, dtype) for x in (query, key, value, out, grad_out))
    is_blind = lse == float("-inf")
    if grad_lse is not None:
        v[..., value_dim] = 1
        do[..., value_dim] = grad_lse.masked_fill(is_blind, 0)
    # exp(-inf - lse) must be 0 for the rows that see nothing.
    lse = lse.masked_fill(is_blind, 0)
    keys_once = plan.covers_keys_once and (len(plan.tiles) == 1 or plan.mask.num_heads <= key.shape[2])
    dq = _new(query, width, is_covered=plan.covers_rows, dtype=dtype).transpose(1, 2)
    dk, dv = (_new(key, width, is_covered=keys_once, dtype=dtype).transpose(1, 2) for _ in range(2))
    for part in _parts(plan, query.shape[0], query.shape[2], key.shape[2]):
        of_queries = [part.of_queries(x) for x in (do, q, o, lse, dq)]
        of_keys = [part.of_keys(x) for x in (k, v, dk, dv)]
        for tile in part.tiles:
            of_rows = [_rows(x, tile.rows) for x in of_queries]
            _tile_backward(*(plan, part.index, tile, of_rows, of_keys), keys_once=keys_once, scale=scale)
    dq, dk, dv = (
        x.transpose(1, 2)[..., :size].to(query.dtype) for x, size in ((dq, head_dim), (dk, head_dim), (dv, value_dim))
    )
    return dq, dk, dv
