"""The MLP of a sparse layer: router, experts, shared experts.

N tokens, X experts, K experts per token, E model width, F expert width.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oarlock import ops
from oarlock.models.config import DecoderConfig
from oarlock.models.mlp import MLP
from oarlock.ops.precision import compute_dtype, without_autocast


@dataclass(frozen=True)
class RouterStatistics:
    """What one sparse layer's router did in one forward pass."""

    load_X: Tensor
    """int64 [X] tokens per expert."""
    balance_loss: Tensor | None
    """Scalar with gradient, where the model is configured to use it."""


class SparseMLP(nn.Module):
    """y = Σ_k weight_k · expert_k(x) + shared(x)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.gate = Router(config)
        sizes = config.num_experts, config.hidden_size, config.moe_intermediate_size
        self.experts = (
            ClampedExperts(*sizes, config.swiglu_alpha, config.swiglu_limit)
            if config.family.clamped_experts
            else Experts(*sizes)
        )
        self.shared_experts = (
            MLP(config.hidden_size, config.num_shared_experts * config.moe_intermediate_size, bias=False)
            if config.num_shared_experts
            else None
        )

    def forward(self, x_BSE: Tensor) -> tuple[Tensor, RouterStatistics]:
        x_NE = x_BSE.flatten(0, 1)
        routing = self.gate(x_NE)
        plan = ops.plan_dispatch(routing.experts_NK, self.config.num_experts)
        y_ME = self.experts(ops.dispatch(x_NE, plan), plan.counts)
        y_BSE = ops.combine(y_ME, routing.weights_NK, plan).view_as(x_BSE)
        if self.shared_experts is not None:
            y_BSE = y_BSE + self.shared_experts(x_BSE)
        loss = ops.balance_loss(routing) if self.config.output_router_logits else None
        return y_BSE, RouterStatistics(routing.load(), loss)


class Router(nn.Module):
    """Chooses K experts per token; computed in float32 whatever the model's dtype."""

    correction_bias: Tensor | None

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))
        self.bias = nn.Parameter(torch.empty(config.num_experts)) if config.family.router_bias else None
        selection = torch.zeros(config.num_experts, dtype=torch.float32) if config.family.selection_bias else None
        self.register_buffer("correction_bias", selection)

    def forward(self, x_NE: Tensor) -> ops.Routing:
        config = self.config
        assert config.family.scoring is not None
        dtype = compute_dtype(x_NE.dtype)
        with without_autocast(x_NE):
            return ops.route(
                F.linear(x_NE.to(dtype), self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype)),
                config.num_experts_per_tok,
                scoring=config.family.scoring,
                selection_bias=self.correction_bias,
                renormalise=config.norm_topk_prob,
                smallest_sum=config.router_norm_min,
                scale=config.routed_scaling_factor,
                num_groups=config.n_group,
                num_chosen_groups=config.topk_group,
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Router":
        # Balancing moves the bias in steps of 0.001, below the resolution of half types: it keeps float32.
        kept = self.correction_bias
        super()._apply(fn, recurse)
        if kept is not None and self.correction_bias is not None and self.correction_bias.dtype != torch.float32:
            self.correction_bias = kept.to(self.correction_bias.device)
        return self


class Experts(nn.Module):
    """X gated MLPs, their weights stacked for the grouped matmul."""

    def __init__(self, num_experts: int, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Parameter(torch.empty(num_experts, intermediate_size, hidden_size))
        self.up_proj = nn.Parameter(torch.empty(num_experts, intermediate_size, hidden_size))
        self.down_proj = nn.Parameter(torch.empty(num_experts, hidden_size, intermediate_size))

    def forward(self, x_ME: Tensor, counts: tuple[int, ...] | Tensor) -> Tensor:
        gate_MF = ops.grouped_matmul(x_ME, self.gate_proj, counts)
        up_MF = ops.grouped_matmul(x_ME, self.up_proj, counts)
        return ops.grouped_matmul(ops.swiglu(gate_MF, up_MF), self.down_proj, counts)


class ClampedExperts(nn.Module):
    """X gated MLPs of gpt-oss: biases, the clamped activation, and weights that stand as in its files.

    There a matrix multiplies from the right, and the columns of gate and up take turns.
    """

    def __init__(self, num_experts: int, hidden_size: int, intermediate_size: int, alpha: float, limit: float) -> None:
        super().__init__()
        self.alpha, self.limit = alpha, limit
        self.gate_up_proj = nn.Parameter(torch.empty(num_experts, hidden_size, 2 * intermediate_size))
        self.gate_up_proj_bias = nn.Parameter(torch.empty(num_experts, 2 * intermediate_size))
        self.down_proj = nn.Parameter(torch.empty(num_experts, intermediate_size, hidden_size))
        self.down_proj_bias = nn.Parameter(torch.empty(num_experts, hidden_size))

    def forward(self, x_ME: Tensor, counts: tuple[int, ...] | Tensor) -> Tensor:
        gate_up_M2F = ops.grouped_matmul(x_ME, self.gate_up_proj.mT, counts, self.gate_up_proj_bias)
        y_MF = ops.clamped_swiglu(gate_up_M2F, self.alpha, self.limit)
        return ops.grouped_matmul(y_MF, self.down_proj.mT, counts, self.down_proj_bias)
