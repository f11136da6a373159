"""Cross-entropy of a linear output layer, computed chunk by chunk: the N × V logits never exist at once.

N tokens, C tokens of one chunk, E model width, V vocabulary.
"""

# pyright: reportIncompatibleMethodOverride=false
# (torch types `backward(ctx, *grads)`; the overrides name their gradients)

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from oarlock.ops import fused
from oarlock.ops.precision import autocast_dtype, compute_dtype, without_autocast

Reduction = Literal["sum", "mean", "none"]

# Tokens of a chunk by default, and its most logits: 128 MiB of float32.
CHUNK_TOKENS, CHUNK_ELEMENTS = 512, 2**25


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    chunk: int = CHUNK_TOKENS,
) -> Tensor:
    """loss_n = logsumexp(z_n) - z_n[target_n] with z = hidden · weightᵀ, for the tokens whose target is not ignored.

    With "sum" and "mean" the forward pass also computes both gradients, while a chunk's logits are at hand; with
    "none" the backward pass computes the logits again. Ignored tokens take no part in any matmul.

    Args:
        hidden: [N, E] floating.
        weight: [V, E], same dtype.
        targets: int64 [N], each in [0, V) or ignore_index.
        ignore_index: target of tokens without a loss.
        reduction: "sum", "mean" (over tokens not ignored; NaN if there are none) or "none" ([N], 0 where ignored).
        chunk: tokens per chunk; fewer are taken where chunk × V would exceed 2²⁵ logits.

    Returns:
        float32 (float64 for float64 inputs) scalar or [N]. Half inputs are accumulated in float32.

    Raises:
        ValueError: shapes or dtypes that do not fit, an unknown reduction, or (checked on the CPU only) a target
            outside [0, V).

    Source: Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models", 2024; the one-pass form is
        Liger-Kernel's.
    """
    _check(hidden, weight, targets, reduction, chunk, ignore_index)
    dtype = autocast_dtype(hidden)
    kept = targets != ignore_index
    rows = None if bool(kept.all()) else kept.nonzero().squeeze(1)
    plan = _Plan(reduction, min(chunk, max(1, CHUNK_ELEMENTS // weight.shape[0])), rows, torch.is_grad_enabled())
    return _LinearCrossEntropy.apply(hidden.to(dtype), weight.to(dtype), targets, plan)


def linear_cross_entropy_reference(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, ignore_index: int = -100, reduction: Reduction = "mean"
) -> Tensor:
    """`linear_cross_entropy` with all logits at once."""
    dtype = compute_dtype(hidden.dtype)
    logits_NV = hidden.to(dtype) @ weight.to(dtype).T
    return F.cross_entropy(logits_NV, targets, ignore_index=ignore_index, reduction=reduction)


def _check(hidden: Tensor, weight: Tensor, targets: Tensor, reduction: str, chunk: int, ignore_index: int) -> None:
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(
            f"hidden must be [N, E] and weight [V, E]; got {tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    if hidden.dtype != weight.dtype and not torch.is_autocast_enabled(hidden.device.type):
        raise ValueError(f"hidden is {hidden.dtype} but weight is {weight.dtype}; cast one of them")
    if targets.shape != hidden.shape[:1] or targets.dtype != torch.int64:
        raise ValueError(f"targets must be int64 [{hidden.shape[0]}]; got {targets.dtype} {tuple(targets.shape)}")
    if reduction not in ("sum", "mean", "none"):
        raise ValueError(f"reduction must be 'sum', 'mean' or 'none'; got {reduction!r}")
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1 token; got {chunk}")
    if targets.device.type == "cpu":  # elsewhere the check would wait for the device; gather asserts there
        bad = targets[(targets != ignore_index) & ((targets < 0) | (targets >= weight.shape[0]))]
        if bad.numel():
            raise ValueError(
                f"target {int(bad[0])} is outside the vocabulary [0, {weight.shape[0]}) and is not "
                f"ignore_index {ignore_index}"
            )


@dataclass(frozen=True)
class _Plan:
    reduction: Reduction
    chunk: int
    rows: Tensor | None  # indices of the tokens with a loss; None means all
    grad_enabled: bool  # inside a Function it is always off, and needs_input_grad does not know of no_grad

    def chunks(self, num_tokens: int) -> Iterator[slice | Tensor]:
        """Row selectors, one per chunk."""
        if self.rows is None:
            yield from (slice(start, min(start + self.chunk, num_tokens)) for start in range(0, num_tokens, self.chunk))
        else:
            yield from self.rows.split(self.chunk)

    def num_losses(self, num_tokens: int) -> int:
        return num_tokens if self.rows is None else self.rows.numel()


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, plan: _Plan) -> Tensor:
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        now = plan.reduction != "none" and plan.grad_enabled and (needs_hidden or needs_weight)
        ctx.plan = plan
        head = _Head(weight, min(plan.chunk, hidden.shape[0]), needs_hidden and now, needs_weight and now)
        loss_N = torch.zeros(hidden.shape[0], dtype=head.dtype, device=hidden.device)
        dhidden = torch.zeros_like(hidden) if head.needs_hidden else None
        with without_autocast(hidden):
            for rows in plan.chunks(hidden.shape[0]):
                h_CE = hidden[rows].to(head.weight.dtype)
                loss_N[rows], u_CV, s_C1 = head.losses(h_CE, targets[rows], with_gradient=now)
                if now:
                    dh_CE = head.gradients(h_CE, u_CV, s_C1)
                    if dhidden is not None and dh_CE is not None:
                        dhidden[rows] = dh_CE.to(hidden.dtype)
        if plan.reduction == "none":
            ctx.save_for_backward(hidden, weight, targets)
            return loss_N
        scale = 1.0 if plan.reduction == "sum" else 1.0 / max(plan.num_losses(hidden.shape[0]), 1)
        ctx.scale = scale
        ctx.save_for_backward(dhidden, head.dweight)
        ctx.dtype = weight.dtype
        loss = loss_N.sum()
        return loss if plan.reduction == "sum" else loss / plan.num_losses(hidden.shape[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        if ctx.plan.reduction == "none":
            dhidden, dweight = _recompute(ctx, dloss)
            return dhidden, dweight, None, None
        dhidden, dweight = ctx.saved_tensors
        factor = dloss * ctx.scale
        dhidden = None if dhidden is None else (dhidden * factor).to(dhidden.dtype)
        dweight = None if dweight is None else (dweight * factor).to(ctx.dtype)
        return dhidden, dweight, None, None


def _recompute(ctx: Any, dloss_N: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Gradients for reduction "none", where each token's upstream gradient is known only now."""
    hidden, weight, targets = ctx.saved_tensors
    head = _Head(weight, min(ctx.plan.chunk, hidden.shape[0]), *ctx.needs_input_grad[:2])
    dhidden = torch.zeros_like(hidden) if head.needs_hidden else None
    with without_autocast(hidden):
        for rows in ctx.plan.chunks(hidden.shape[0]):
            h_CE = hidden[rows].to(head.weight.dtype)
            _, u_CV, s_C1 = head.losses(h_CE, targets[rows], upstream_C=dloss_N[rows])
            dh_CE = head.gradients(h_CE, u_CV, s_C1)
            if dhidden is not None and dh_CE is not None:
                dhidden[rows] = dh_CE.to(hidden.dtype)
    return dhidden, None if head.dweight is None else head.dweight.to(weight.dtype)


class _Head:
    """The output layer and the buffers that its chunks share."""

    def __init__(self, weight: Tensor, chunk: int, needs_hidden: bool, needs_weight: bool) -> None:
        self.dtype = compute_dtype(weight.dtype)
        # CPUs multiply half types slowly or not at all; CUDA multiplies them into float32.
        self.weight = weight if weight.is_cuda else weight.to(self.dtype)
        self.needs_hidden = needs_hidden
        self.dweight = torch.zeros_like(weight, dtype=self.dtype) if needs_weight else None
        self._logits = torch.empty(chunk, weight.shape[0], dtype=self.dtype, device=weight.device)

    def losses(
        self, h_CE: Tensor, targets_C: Tensor, *, upstream_C: Tensor | None = None, with_gradient: bool = True
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """(losses [C], u [C, V], s [C, 1]) with u / s = upstream · (softmax(z) - onehot(target)); no s means 1.

        u lives in the shared buffer; without the gradient it is not computed.
        """
        z_CV = self._logits[: h_CE.shape[0]]
        _matmul(h_CE, self.weight.T, out=z_CV)
        if fused.applies(z_CV):
            scale = 1.0 if upstream_C is None else upstream_C
            # No ignored tokens reach this point, and no target is negative.
            loss_C = fused.softmax_cross_entropy_(
                z_CV, targets_C, ignore_index=-1, scale=scale, with_gradient=with_gradient
            )
            return loss_C, z_CV, None
        targets_C1 = targets_C.unsqueeze(1)
        largest_C1 = z_CV.amax(dim=-1, keepdim=True)
        target_C1 = z_CV.gather(1, targets_C1)
        z_CV.sub_(largest_C1).exp_()
        sum_C1 = z_CV.sum(dim=-1, keepdim=True)
        loss_C = (largest_C1 + sum_C1.log() - target_C1).squeeze(1)
        if with_gradient:
            z_CV.scatter_add_(1, targets_C1, -sum_C1)
        return loss_C, z_CV, sum_C1 if upstream_C is None else sum_C1 / upstream_C.unsqueeze(1)

    def gradients(self, h_CE: Tensor, u_CV: Tensor, s_C1: Tensor | None) -> Tensor | None:
        """Gradient (u / s) · weight of h; adds (u / s)ᵀ · h to dweight. Dividing by s is cheaper on the E side."""
        u_CV = u_CV.to(h_CE.dtype)
        if self.dweight is not None:
            scaled_CE = h_CE if s_C1 is None else (h_CE / s_C1).to(h_CE.dtype)
            if scaled_CE.dtype == self.dtype:
                self.dweight.addmm_(u_CV.T, scaled_CE)
            else:
                self.dweight += _matmul(u_CV.T, scaled_CE)
        if not self.needs_hidden:
            return None
        dh_CE = _matmul(u_CV, self.weight)
        return dh_CE if s_C1 is None else dh_CE.div_(s_C1)


def _matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """a · b with a float32 result for half types."""
    if compute_dtype(a.dtype) == a.dtype:
        return torch.mm(a, b, out=out) if out is not None else torch.mm(a, b)
    product = torch.mm(a, b, out_dtype=torch.float32)
    return product if out is None else out.copy_(product)
