"""Linear maps with what follows them: bias, activation, dropout and residual."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock import ops
from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import as_dtype
from oarlock.paddle.incubate.nn.functional.quantise import quantised
from oarlock.paddle.nn.functional.layers import dropout
from oarlock.paddle.nn.functional.norm import layer_norm

AT = "paddle.incubate.nn.functional"


@api(at=AT)
def fused_matmul_bias(
    x: Tensor, y: Tensor, bias: Tensor | None = None, transpose_x: bool = False, transpose_y: bool = False
) -> Tensor:
    """`x @ y + bias`, either matrix transposed first if asked."""
    made = torch.matmul(x.mT if transpose_x else x, y.mT if transpose_y else y)
    return made if bias is None else made + bias


@api(at=AT)
def fused_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, transpose_weight: bool = False) -> Tensor:
    """`x @ weight + bias`, with weight [in, out], or [out, in] if `transpose_weight`."""
    return fused_matmul_bias(x, weight, bias, False, transpose_weight)


@api(at=AT)
def fused_linear_activation(
    x: Tensor,
    y: Tensor,
    bias: Tensor,
    trans_x: bool = False,
    trans_y: bool = False,
    activation: str | None = None,
) -> Tensor:
    """`activation(x @ y + bias)`; the activation is None, "relu" or "gelu" (its tanh form, as in Paddle's kernel)."""
    made = fused_matmul_bias(x, y, bias, trans_x, trans_y)
    if activation in (None, "none"):
        return made
    if activation == "relu":
        return torch.relu(made)
    if activation == "gelu":
        return F.gelu(made, approximate="tanh")
    raise ValueError(f"activation must be None, 'relu' or 'gelu', not {activation!r}")


def _activated(x: Tensor, method: str) -> Tensor:
    if method == "gelu":
        return F.gelu(x)
    if method == "relu":
        return torch.relu(x)
    if method in ("swiglu", "geglu"):
        gate, up = x.chunk(2, -1)
        return ops.swiglu(gate, up) if method == "swiglu" else F.gelu(gate) * up
    raise ValueError(f"act_method must be 'gelu', 'relu', 'swiglu' or 'geglu', not {method!r}")


@api(at=AT)
def fused_bias_act(
    x: Tensor,
    bias: Tensor | None = None,
    dequant_scales: Tensor | None = None,
    shift: Tensor | None = None,
    smooth: Tensor | None = None,
    act_method: str = "gelu",
    compute_dtype: str = "default",
    quant_scale: float = -1,
    quant_round_type: int = 0,
    quant_max_bound: float = 0,
    quant_min_bound: float = 0,
) -> Tensor:
    """`(act(x·dequant_scales + bias) + shift)·smooth`, quantised to int8 if `quant_scale` is positive.

    Args:
        x: [..., D]; integers need `dequant_scales` and a `compute_dtype`.
        bias: [D].
        act_method: "gelu", "relu", or of two halves "swiglu" and "geglu", which give [..., D / 2].
        compute_dtype: "default" (that of `x`), "fp16", "bf16" or "fp32".
    """
    names = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
    dtype = x.dtype if compute_dtype == "default" else as_dtype(names.get(compute_dtype, compute_dtype))
    value = x if dequant_scales is None else x * dequant_scales
    value = value.to(dtype)
    made = _activated(value if bias is None else value + bias, act_method)
    made = made if shift is None else made + shift
    made = made if smooth is None else made * smooth
    return quantised(made, quant_scale, quant_round_type, quant_max_bound, quant_min_bound)


@api(at=AT)
def fused_dropout_add(
    x: Tensor, y: Tensor, p: float = 0.5, training: bool = True, mode: str = "upscale_in_train"
) -> Tensor:
    """`dropout(x) + y`."""
    return dropout(x, p, training=training, mode=mode) + y


@api(at=AT)
def fused_bias_dropout_residual_layer_norm(
    x: Tensor,
    residual: Tensor,
    bias: Tensor | None = None,
    ln_scale: Tensor | None = None,
    ln_bias: Tensor | None = None,
    dropout_rate: float = 0.5,
    ln_epsilon: float = 1e-5,
    training: bool = True,
    mode: str = "upscale_in_train",
) -> Tensor:
    """`layer_norm(residual + dropout(x + bias))`."""
    made = x if bias is None else x + bias
    total = residual + dropout(made, dropout_rate, training=training, mode=mode)
    return layer_norm(total, x.shape[-1], ln_scale, ln_bias, ln_epsilon)


@api(at=AT)
def fused_feedforward(
    x: Tensor,
    linear1_weight: Tensor,
    linear2_weight: Tensor,
    linear1_bias: Tensor | None = None,
    linear2_bias: Tensor | None = None,
    ln1_scale: Tensor | None = None,
    ln1_bias: Tensor | None = None,
    ln2_scale: Tensor | None = None,
    ln2_bias: Tensor | None = None,
    dropout1_rate: float = 0.5,
    dropout2_rate: float = 0.5,
    activation: str = "relu",
    ln1_epsilon: float = 1e-5,
    ln2_epsilon: float = 1e-5,
    pre_layer_norm: bool = False,
    training: bool = True,
    mode: str = "upscale_in_train",
    ring_id: int = -1,
    add_residual: bool = True,
) -> Tensor:
    """The MLP of a transformer layer: `x + dropout2(linear2(dropout1(activation(linear1(x)))))` with a layer norm.

    The first norm acts before, if `pre_layer_norm`, else the second one on the sum. `activation` is "relu" or "gelu".

    Args:
        x: [..., D].
        linear1_weight: [D, F].
        linear2_weight: [F, D].
        ring_id: -1: the weights are whole.

    Raises:
        ValueError: another `ring_id`.
    """
    if ring_id != -1:
        raise ValueError(f"ring_id {ring_id}: the weights must be whole; pass -1")
    width = x.shape[-1]
    start: Any = layer_norm(x, width, ln1_scale, ln1_bias, ln1_epsilon) if pre_layer_norm else x
    inner = _activated(fused_matmul_bias(start, linear1_weight, linear1_bias), activation)
    inner = dropout(inner, dropout1_rate, training=training, mode=mode)
    made = dropout(fused_matmul_bias(inner, linear2_weight, linear2_bias), dropout2_rate, training=training, mode=mode)
    made = x + made if add_residual else made
    return made if pre_layer_norm else layer_norm(made, width, ln2_scale, ln2_bias, ln2_epsilon)
