"""Norms with the bias and residual before them, through `oarlock.ops` where only the last dimension is normalised."""

import math
from typing import Any

import torch
from torch import Tensor

from oarlock import ops
from oarlock.paddle.declare import api
from oarlock.paddle.incubate.nn.functional.quantise import quantised
from oarlock.paddle.nn.functional.norm import layer_norm

AT = "paddle.incubate.nn.functional"


def _axis(x: Tensor, begin_norm_axis: int) -> int:
    axis = begin_norm_axis + x.ndim if begin_norm_axis < 0 else begin_norm_axis
    if not 0 <= axis < x.ndim:
        raise ValueError(f"begin_norm_axis must be in [{-x.ndim}, {x.ndim}), not {begin_norm_axis}")
    return axis


def _moments(rows: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Mean and 1 / deviation over the last dimension."""
    mean = rows.mean(-1)
    return mean, torch.rsqrt((rows - mean.unsqueeze(-1)).square().mean(-1) + epsilon)


@api(at=AT, out=False)
def fused_rms_norm(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None,
    epsilon: float,
    begin_norm_axis: int = 1,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    quant_scale: float = -1,
    quant_round_type: int = 0,
    quant_max_bound: float = 0,
    quant_min_bound: float = 0,
) -> tuple[Tensor, Tensor]:
    """`s / sqrt(mean(s²) + epsilon)·norm_weight + norm_bias`, `s = x + bias + residual` (x itself without residual).

    Args:
        x: any shape; the dimensions from `begin_norm_axis` on are normalised together.
        norm_weight: as many elements as they have, as has `norm_bias`.
        residual: as `x`.
        quant_scale: positive: the result is quantised to int8.

    Returns:
        (the norm, s); without a residual the second is empty.
    """
    axis = _axis(x, begin_norm_axis)
    total = x if bias is None or residual is None else x + bias  # Paddle's kernel takes the bias with the residual
    shape = total.shape
    weight = norm_weight.reshape(-1)
    flat = total.reshape(*shape[:axis], math.prod(shape[axis:]))
    if residual is None:
        made = ops.rms_norm(flat, weight, epsilon)
    else:
        flat, made = ops.add_rms_norm(residual.reshape(flat.shape), flat, weight, epsilon)
    made = made if norm_bias is None else made + norm_bias.reshape(-1)
    made = quantised(made.reshape(shape), quant_scale, quant_round_type, quant_max_bound, quant_min_bound)
    return made, x.new_empty(0) if residual is None else flat.reshape(shape)


@api(at=AT, out=False)
def fused_layer_norm(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    epsilon: float,
    residual_alpha: float = 1.0,
    begin_norm_axis: int = 1,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    quant_scale: float = -1,
    quant_round_type: int = 0,
    quant_max_bound: float = 0,
    quant_min_bound: float = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The layer norm of `s = x + bias + residual_alpha·residual` (x without residual).

    Without weight and bias it is s itself.

    Args:
        x: any shape; the dimensions from `begin_norm_axis` on are normalised together.
        norm_weight: as many elements as they have, as has `norm_bias`.
        residual: as `x`.
        quant_scale: positive: the result is quantised to int8.

    Returns:
        (the norm, s or without a residual empty, mean and 1 / deviation of each row in float32).
    """
    axis = _axis(x, begin_norm_axis)
    total = x
    if residual is not None:
        total = residual_alpha * residual + (x if bias is None else x + bias)
    rows = total.detach().float().reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
    mean, inverse = _moments(rows, epsilon)
    shape: Any = list(x.shape[axis:])
    bare = norm_weight is None and norm_bias is None
    made = total if bare else layer_norm(total, shape, norm_weight, norm_bias, epsilon)
    made = quantised(made, quant_scale, quant_round_type, quant_max_bound, quant_min_bound)
    return made, x.new_empty(*x.shape, 0) if residual is None else total, mean, inverse


@api(at=AT, out=False)
def fast_ln(x: Tensor, scale: Tensor, bias: Tensor, epsilon: float = 1e-5) -> tuple[Tensor, Tensor, Tensor]:
    """(the layer norm over the last dimension, mean, 1 / deviation), the last two float32 for each row."""
    return layer_norm(x, x.shape[-1], scale, bias, epsilon), *_moments(x.detach().float(), epsilon)


@api("fused_rms_norm_ext", at=AT, out=False)
def fast_rms_norm(x: Tensor, scale: Tensor, epsilon: float = 1e-5) -> tuple[Tensor, Tensor]:
    """(`x / rms(x)·scale` over the last dimension, 1 / rms float32 for each row)."""
    inverse = torch.rsqrt(x.detach().float().square().mean(-1) + epsilon)
    return ops.rms_norm(x, scale, epsilon), inverse
