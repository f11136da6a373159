"""SwiGLU, the gated activation of the decoder's MLP, and its clamped variant of gpt-oss."""

# pyright: reportIncompatibleMethodOverride=false
# (torch types `backward(ctx, *grads)`; the overrides name their gradients)

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from oarlock.ops import fused
from oarlock.ops.precision import compute_dtype


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """y = silu(gate) · up with silu(g) = g / (1 + exp(-g)).

    Saves only its two inputs, silu is computed again in the backward pass.

    Args:
        gate: any shape, floating; half types are computed in float32.
        up: same shape and dtype.

    Returns:
        Tensor of the same shape and dtype.

    Source: Shazeer, "GLU Variants Improve Transformer", 2020.
    """
    return _SwiGLU.apply(gate, up)


def swiglu_reference(gate: Tensor, up: Tensor) -> Tensor:
    """`swiglu` as its formula reads."""
    dtype = compute_dtype(gate.dtype)
    return (gate.to(dtype) * torch.sigmoid(gate.to(dtype)) * up.to(dtype)).to(gate.dtype)


def clamped_swiglu(gate_up: Tensor, alpha: float, limit: float) -> Tensor:
    """y = (u + 1) · g · sigmoid(alpha · g) with g = min(gate, limit) and u = up clamped to [-limit, limit].

    Saves only its input.

    Args:
        gate_up: [..., 2F], floating: gate and up in turn (gate_0, up_0, gate_1, ...); half types are computed in
            float32.
        alpha: steepness of the sigmoid, 1.702 in gpt-oss.
        limit: 7 in gpt-oss.

    Returns:
        [..., F] in the dtype of gate_up.

    Source: OpenAI, gpt-oss, 2025.
    """
    return _ClampedSwiGLU.apply(gate_up, alpha, limit)


def clamped_swiglu_reference(gate_up: Tensor, alpha: float, limit: float) -> Tensor:
    """`clamped_swiglu` as its formula reads."""
    gate, up = gate_up.to(compute_dtype(gate_up.dtype)).unflatten(-1, (-1, 2)).unbind(-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return ((up + 1) * gate * torch.sigmoid(alpha * gate)).to(gate_up.dtype)


class _ClampedSwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, alpha: float, limit: float) -> Tensor:
        ctx.save_for_backward(gate_up)
        ctx.alpha, ctx.limit = alpha, limit
        return clamped_swiglu_reference(gate_up, alpha, limit)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        (gate_up,) = ctx.saved_tensors
        dtype = compute_dtype(gate_up.dtype)
        raw_gate, raw_up = gate_up.to(dtype).unflatten(-1, (-1, 2)).unbind(-1)
        gate, up = raw_gate.clamp(max=ctx.limit), raw_up.clamp(-ctx.limit, ctx.limit)
        chance = torch.sigmoid(ctx.alpha * gate)
        slope = chance * (1 + ctx.alpha * gate * (1 - chance))  # of g · sigmoid(alpha · g)
        grad = torch.empty_like(gate_up)
        dgate, dup = grad.unflatten(-1, (-1, 2)).unbind(-1)
        dgate.copy_((dy * (up + 1) * slope).masked_fill_(raw_gate > ctx.limit, 0.0))
        dup.copy_((dy * gate * chance).masked_fill_(raw_up.abs() > ctx.limit, 0.0))
        return grad, None, None


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        if fused.applies(gate, up):
            return fused.swiglu(gate, up)
        dtype = compute_dtype(gate.dtype)
        return F.silu(gate.to(dtype)).mul_(up).to(gate.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        if fused.applies(dy, gate, up):
            return fused.swiglu_backward(dy, gate, up)
        dtype = compute_dtype(gate.dtype)
        gate_f, dy_f = gate.to(dtype), dy.to(dtype)
        dup = F.silu(gate_f).mul_(dy_f)
        dgate = dy_f * up
        torch.ops.aten.silu_backward.grad_input(dgate, gate_f, grad_input=dgate)
        return dgate.to(gate.dtype), dup.to(up.dtype)
