"""SwiGLU: the gated activation of the decoder's MLP."""

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
