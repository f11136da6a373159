"""Mixture of experts, moving tokens: gather them by expert, multiply group by group, sum the results per token.

N tokens, K experts per token, M = N · K rows, X experts, E model width, F expert width.
"""

# pyright: reportIncompatibleMethodOverride=false
# (torch types `backward(ctx, *grads)`; the overrides name their gradients)

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from oarlock.ops.precision import autocast_dtype
from oarlock.ops.routing import count_choices


@dataclass(frozen=True)
class DispatchPlan:
    """Where each (token, choice) pair lies once the rows are sorted by expert."""

    token_M: Tensor
    """int64 [M]: token of each sorted row."""
    row_NK: Tensor
    """int64 [N, K]: sorted row of each token's choice (the inverse permutation)."""
    counts: tuple[int, ...] | Tensor
    """Rows of each expert, in order; they may be 0 and sum to M. Under torch.compile an int64 [X], as a graph holds no
    number that depends on values."""


def plan_dispatch(experts_NK: Tensor, num_experts: int) -> DispatchPlan:
    """Sort the choices by expert; within an expert, tokens keep their order.

    Args:
        experts_NK: int64 [N, K] from `route`.
        num_experts: X.

    Returns:
        DispatchPlan.
    """
    flat_M = experts_NK.flatten()
    order_M = flat_M.argsort(stable=True)
    row_M = torch.empty_like(order_M)
    row_M[order_M] = torch.arange(order_M.numel(), device=order_M.device)
    counts_X = count_choices(flat_M, num_experts)
    counts = counts_X if torch.compiler.is_compiling() else tuple(counts_X.tolist())
    return DispatchPlan(order_M // experts_NK.shape[1], row_M.view_as(experts_NK), counts)


def dispatch(x_NE: Tensor, plan: DispatchPlan) -> Tensor:
    """[M, E]: the tokens' rows sorted by expert. The backward pass sums a token's K gradients in a fixed order."""
    return _Dispatch.apply(x_NE, plan)


def combine(y_ME: Tensor, weights_NK: Tensor, plan: DispatchPlan) -> Tensor:
    """out_n = Σ_k weights[n, k] · y[row of (n, k)]: undoes `dispatch`.

    Args:
        y_ME: [M, E] expert outputs, sorted by expert.
        weights_NK: [N, K] floating.
        plan: the plan used to dispatch.

    Returns:
        [N, E] in y's dtype; the sum runs in the promoted dtype of y and weights.
    """
    return _Combine.apply(y_ME, weights_NK, plan)


def grouped_matmul(
    x_ME: Tensor, weight_XFE: Tensor, counts: tuple[int, ...] | Tensor, bias_XF: Tensor | None = None
) -> Tensor:
    """y = x · weight[x's expert]ᵀ + bias[x's expert] for rows sorted by expert: one matmul per expert that has rows.

    Args:
        x_ME: [M, E] rows sorted by expert.
        weight_XFE: [X, F, E], of any strides.
        counts: rows per expert, X numbers that sum to M; or an int64 [X] of them.
        bias_XF: [X, F], or none.

    Returns:
        [M, F]. An expert without rows gets a gradient of exactly zero.

    Raises:
        ValueError: counts that do not fit.
    """
    dtype = autocast_dtype(x_ME)
    bias_XF = None if bias_XF is None else bias_XF.to(dtype)
    if isinstance(counts, Tensor):
        return grouped_matmul_operator(x_ME.to(dtype), weight_XFE.to(dtype), bias_XF, counts)
    _check_counts(counts, x_ME, weight_XFE)
    return _GroupedMatmul.apply(x_ME.to(dtype), weight_XFE.to(dtype), bias_XF, counts)


def _check_counts(counts: Sequence[int], x_ME: Tensor, weight_XFE: Tensor) -> None:
    if len(counts) != weight_XFE.shape[0] or sum(counts) != x_ME.shape[0]:
        raise ValueError(
            f"counts must be {weight_XFE.shape[0]} numbers that sum to {x_ME.shape[0]} rows; "
            f"got {len(counts)} that sum to {sum(counts)}"
        )


def experts_reference(x_NE: Tensor, weight_XFE: Tensor, experts_NK: Tensor, weights_NK: Tensor) -> Tensor:
    """combine(grouped_matmul(dispatch(x))) as a sum over every token and choice: [N, F]."""
    y_NXF = torch.einsum("ne,xfe->nxf", x_NE, weight_XFE)
    chosen_NKF = y_NXF.gather(1, experts_NK.unsqueeze(-1).expand(-1, -1, y_NXF.shape[2]))
    return (chosen_NKF * weights_NK.unsqueeze(-1)).sum(dim=1)


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NE: Tensor, plan: DispatchPlan) -> Tensor:
        ctx.plan = plan
        return x_NE.index_select(0, plan.token_M)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_ME: Tensor) -> tuple[Tensor, None]:
        return _rows(dy_ME, ctx.plan).sum(dim=1), None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y_ME: Tensor, weights_NK: Tensor, plan: DispatchPlan) -> Tensor:
        ctx.plan = plan
        ctx.save_for_backward(y_ME, weights_NK)
        return (_rows(y_ME, plan) * weights_NK.unsqueeze(-1)).sum(dim=1).to(y_ME.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout_NE: Tensor) -> tuple[Tensor, Tensor, None]:
        y_ME, weights_NK = ctx.saved_tensors
        plan: DispatchPlan = ctx.plan
        weight_M = torch.empty_like(weights_NK).flatten()
        weight_M[plan.row_NK.flatten()] = weights_NK.flatten()
        dout_ME = dout_NE.index_select(0, plan.token_M)
        dweight_M = (dout_ME.to(weight_M.dtype) * y_ME).sum(dim=-1)
        dy_ME = (dout_ME * weight_M.unsqueeze(-1)).to(y_ME.dtype)
        return dy_ME, dweight_M[plan.row_NK], None


def _rows(y_ME: Tensor, plan: DispatchPlan) -> Tensor:
    """[N, K, E]: the sorted rows back in token order."""
    return y_ME.index_select(0, plan.row_NK.flatten()).view(*plan.row_NK.shape, y_ME.shape[1])


class _GroupedMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ME: Tensor, weight_XFE: Tensor, bias_XF: Tensor | None, counts: tuple[int, ...]) -> Tensor:
        ctx.counts = counts
        ctx.save_for_backward(x_ME, weight_XFE)
        return _multiply(x_ME, weight_XFE, bias_XF, counts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_MF: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x_ME, weight_XFE = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        return *_multiply_backward(dy_MF, x_ME, weight_XFE, ctx.counts, wanted), None


def _multiply(x_ME: Tensor, weight_XFE: Tensor, bias_XF: Tensor | None, counts: Sequence[int]) -> Tensor:
    y_MF = x_ME.new_empty(x_ME.shape[0], weight_XFE.shape[1])
    for expert, (x, y) in enumerate(zip(x_ME.split(tuple(counts)), y_MF.split(tuple(counts)), strict=True)):
        if not len(x):
            continue
        if bias_XF is None:
            torch.mm(x, weight_XFE[expert].T, out=y)
        else:
            torch.addmm(bias_XF[expert], x, weight_XFE[expert].T, out=y)
    return y_MF


def _multiply_backward(
    dy_MF: Tensor, x_ME: Tensor, weight_XFE: Tensor, counts: Sequence[int], wanted: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    dx_ME = torch.empty_like(x_ME) if wanted[0] else None
    dweight_XFE = torch.zeros_like(weight_XFE) if wanted[1] else None
    dbias_XF = dy_MF.new_zeros(weight_XFE.shape[:2]) if wanted[2] else None
    start = 0
    for expert, count in enumerate(counts):
        rows = slice(start, start + count)
        start += count
        if not count:
            continue
        if dx_ME is not None:
            torch.mm(dy_MF[rows], weight_XFE[expert], out=dx_ME[rows])
        if dweight_XFE is not None:
            torch.mm(dy_MF[rows].T, x_ME[rows], out=dweight_XFE[expert])
        if dbias_XF is not None:
            torch.sum(dy_MF[rows], dim=0, out=dbias_XF[expert])
    return dx_ME, dweight_XFE, dbias_XF


# ------------------------------------------------------------------------------------- one operator, for torch.compile


@torch.library.custom_op("oarlock::grouped_matmul", mutates_args=())
def grouped_matmul_operator(x_ME: Tensor, weight_XFE: Tensor, bias_XF: Tensor | None, counts_X: Tensor) -> Tensor:
    """`grouped_matmul` that reads its counts when it runs."""
    counts = counts_X.tolist()
    _check_counts(counts, x_ME, weight_XFE)
    return _multiply(x_ME, weight_XFE, bias_XF, counts)


@grouped_matmul_operator.register_fake
def _(x_ME: Tensor, weight_XFE: Tensor, bias_XF: Tensor | None, counts_X: Tensor) -> Tensor:
    return x_ME.new_empty(x_ME.shape[0], weight_XFE.shape[1])


@torch.library.custom_op("oarlock::grouped_matmul_backward", mutates_args=())
def _backward_operator(
    dy_MF: Tensor, x_ME: Tensor, weight_XFE: Tensor, counts_X: Tensor, with_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dx_ME, dweight_XFE, dbias_XF = _multiply_backward(
        dy_MF, x_ME, weight_XFE, counts_X.tolist(), (True, True, with_bias)
    )
    assert dx_ME is not None
    assert dweight_XFE is not None
    return dx_ME, dweight_XFE, dy_MF.new_empty(0) if dbias_XF is None else dbias_XF


@_backward_operator.register_fake
def _(
    dy_MF: Tensor, x_ME: Tensor, weight_XFE: Tensor, counts_X: Tensor, with_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    shape = weight_XFE.shape[:2] if with_bias else (0,)
    return torch.empty_like(x_ME), torch.empty_like(weight_XFE), dy_MF.new_empty(shape)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, Tensor], output: Tensor) -> None:
    x_ME, weight_XFE, bias_XF, counts_X = inputs
    ctx.save_for_backward(x_ME, weight_XFE, counts_X)
    ctx.with_bias = bias_XF is not None


def _gradients(ctx: Any, dy_MF: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
    x_ME, weight_XFE, counts_X = ctx.saved_tensors
    dx_ME, dweight_XFE, dbias_XF = _backward_operator(dy_MF, x_ME, weight_XFE, counts_X, ctx.with_bias)
    return dx_ME, dweight_XFE, dbias_XF if ctx.with_bias else None, None


grouped_matmul_operator.register_autograd(_gradients, setup_context=_keep)
