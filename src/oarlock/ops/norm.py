"""Root-mean-square normalisation, alone and fused with the residual addition before it.

E model width (the normalised dim); leading dims are free.
"""

# pyright: reportIncompatibleMethodOverride=false
# (torch types `backward(ctx, *grads)`; the overrides name their gradients)

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from oarlock.ops import fused
from oarlock.ops.precision import compute_dtype, without_autocast


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """y = weight · x / sqrt(mean(x²) + eps), the mean over the last dim.

    Args:
        x: [..., E], any floating dtype; half types are computed in float32.
        weight: [E].
        eps: added to the mean square.

    Returns:
        [..., E] in x's dtype.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    return _RMSNorm.apply(x, weight, eps)


def add_rms_norm(x: Tensor, update: Tensor, weight: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """The residual step of a decoder layer: s = x + update, y = rms_norm(s, weight, eps).

    One backward adds both gradients of s, so autograd needs no accumulation pass of its own.

    Args:
        x: [..., E] residual stream.
        update: [..., E] what the sub-layer adds to it.
        weight: [E].
        eps: added to the mean square.

    Returns:
        (s, y), each [..., E]: s in the promoted dtype of x and update, y in the dtype of s.
    """
    return _AddRMSNorm.apply(x, update, weight, eps)


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """`rms_norm` as its formula reads."""
    x_f = x.to(compute_dtype(x.dtype))
    return (weight * x_f * torch.rsqrt(x_f.square().mean(dim=-1, keepdim=True) + eps)).to(x.dtype)


def _normalise(x: Tensor, weight: Tensor, eps: float, update: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(t, y, 1 / rms) with t = x + update, or x: [..., E] twice and [N, 1]."""
    if fused.applies(*(t for t in (x, weight, update) if t is not None)):
        total, y, inverse_rms = fused.rms_norm(x, weight, eps, update)
        return total, y, inverse_rms.unsqueeze(1)
    total = x if update is None else x + update
    width = total.shape[-1]
    x_NE = total.reshape(-1, width).to(compute_dtype(total.dtype))
    # vector_norm is one vectorised pass; mean(x * x) writes a whole temporary.
    inverse_rms = torch.linalg.vector_norm(x_NE, dim=-1, keepdim=True).square_().div_(width).add_(eps).rsqrt_()
    y_NE = (x_NE * inverse_rms).mul_(weight)
    return total, y_NE.to(total.dtype).view(total.shape), inverse_rms


def _gradients(
    dy: Tensor, x: Tensor, weight: Tensor, inverse_rms: Tensor, dtotal: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(dx [..., E], dweight [E]): dx = (g - x̂ · mean(g · x̂)) / rms + dtotal with g = dy · weight, x̂ = x / rms."""
    if fused.applies(*(t for t in (dy, x, weight, dtotal) if t is not None)):
        return fused.rms_norm_backward(dy, x, weight, inverse_rms.squeeze(1), dtotal)
    width = x.shape[-1]
    dtype = compute_dtype(x.dtype)
    dy_NE = dy.reshape(-1, width).to(dtype)
    x_NE = x.reshape(-1, width).to(dtype)
    weight_E = weight.to(dtype)
    # ATen's layer-norm backward with a mean of zero is one fused sweep. It subtracts mean(g) as well; put it back.
    dx_NE, dweight_E, _ = torch.ops.aten.native_layer_norm_backward(
        dy_NE, x_NE, [width], torch.zeros_like(inverse_rms), inverse_rms, weight_E, None, [True, True, False]
    )
    with without_autocast(x):
        dx_NE.add_((dy_NE @ weight_E).unsqueeze(-1).mul_(inverse_rms).div_(width))
    dx = dx_NE.view(x.shape)
    return dx if dtotal is None else dx.add_(dtotal), dweight_E


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        _, y, inverse_rms = _normalise(x, weight, eps)
        ctx.save_for_backward(x, weight, inverse_rms)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse_rms = ctx.saved_tensors
        dx, dweight = _gradients(dy, x, weight, inverse_rms)
        return dx.to(x.dtype), dweight.to(weight.dtype), None


class _AddRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, update: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total, y, inverse_rms = _normalise(x, weight, eps, update)
        ctx.save_for_backward(total, weight, inverse_rms)
        ctx.dtypes = x.dtype, update.dtype
        return total, y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dtotal: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        total, weight, inverse_rms = ctx.saved_tensors
        dx, dweight = _gradients(dy, total, weight, inverse_rms, dtotal)
        x_dtype, update_dtype = ctx.dtypes
        return dx.to(x_dtype), dx.to(update_dtype), dweight.to(weight.dtype), None
