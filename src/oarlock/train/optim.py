"""The optimizers of a run: AdamW, or Muon for the blocks' matrices with AdamW for everything else.

Muon's iteration runs on all matrices of one shape at once, in bf16 where that is the fast dtype (accelerators, CPUs
with AMX), else in fp32: most CPUs multiply bf16 5 to 50 times slower.
"""

import functools
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from oarlock.train.config import OptimizerConfig

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalise(gradient: Tensor, num_iterations: int = 5) -> Tensor:
    """Nearest semi-orthogonal matrix, roughly: all singular values are driven into about [0.7, 1.2].

    Formula: X <- a X + (b A + c A A) X with A = X X^T, from X = G / |G|_F (quintic Newton-Schulz iteration).

    Args:
        gradient: [..., M, N], float.

    Returns:
        Same shape and dtype.

    Source: K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024.
    """
    a, b, c = NEWTON_SCHULZ
    x = gradient / (gradient.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    for _ in range(num_iterations):
        gram = x @ x.mT
        if x.ndim == 3:  # the same in two calls less, and without temporaries
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        else:
            x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised: W <- (1 - lr wd) W - lr sqrt(max(1, M / N)) orthogonalise(g + mu (m - g)).

    m is the exponential average of gradients with decay mu. Weights of rank 3 ([experts, M, N]) are treated as a
    batch of matrices.

    Args:
        params: matrices [M, N] or batches of them.
        lr: step in units of the update's spectral norm.
        momentum: mu.
        weight_decay: decoupled.

    Raises:
        ValueError: a parameter with fewer than two dimensions.

    Source: as `orthogonalise`; scale of the update as in its reference implementation.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float = 0.02, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim < 2:
                    raise ValueError(f"Muon takes matrices, got shape {tuple(p.shape)}; give it to AdamW")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            by_shape: dict[tuple[torch.Size, torch.dtype, torch.device], list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    by_shape.setdefault((p.shape[-2:], p.dtype, p.device), []).append(p)
            for params in by_shape.values():
                self._step_one_shape(params, group)
        return loss

    def _step_one_shape(self, params: list[Tensor], group: dict) -> None:
        num_rows, num_columns = params[0].shape[-2:]
        mu = group["momentum"]
        looks_ahead = []
        for p in params:
            state = self.state[p]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(p)
            buffer = state["momentum_buffer"]
            assert p.grad is not None
            buffer.lerp_(p.grad, 1 - mu)
            looks_ahead.append(p.grad.lerp(buffer, mu).view(-1, num_rows, num_columns))
        work = torch.cat(looks_ahead)
        if multiplies_bf16_fast(work.device):
            work = work.bfloat16()
        updates = orthogonalise(work).to(params[0].dtype).split([g.shape[0] for g in looks_ahead])
        scale = max(1.0, num_rows / num_columns) ** 0.5
        for p, update in zip(params, updates, strict=True):
            if group["weight_decay"]:
                p.mul_(1 - group["lr"] * group["weight_decay"])
            p.add_(update.view_as(p), alpha=-group["lr"] * scale)


@functools.cache
def multiplies_bf16_fast(device: torch.device) -> bool:
    """Accelerators do; of CPUs, those with AMX tiles (a torch that cannot tell counts as one without)."""
    if device.type != "cpu":
        return True
    return bool(getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)())


def build_optimizers(model: nn.Module, config: OptimizerConfig) -> dict[str, torch.optim.Optimizer]:
    """The optimizers of a run by name, their groups carrying `peak_lr` for the schedule.

    Matrices of the blocks decay and go to Muon if asked; embeddings, output projection, norms and biases go to AdamW
    without decay (with AdamW alone, the matrices decay there).
    """
    matrices, rest = [], []
    for name, p in model.named_parameters():
        if p.requires_grad:
            is_outer = "embed_tokens" in name or "lm_head" in name
            is_bias = p.ndim < 2 or name.endswith("bias")  # the biases of all experts are one tensor [X, F]
            (rest if is_outer or is_bias else matrices).append(p)
    if not matrices and not rest:
        raise ValueError("the model has no parameter that requires a gradient")
    adam_options = {
        "lr": config.learning_rate,
        "betas": (config.beta1, config.beta2),
        "eps": config.epsilon,
        "weight_decay": 0.0,
    }
    optimizers: dict[str, torch.optim.Optimizer] = {}
    if config.name == "muon":
        muon = Muon(matrices, config.muon_learning_rate, config.momentum, config.weight_decay)
        optimizers["muon"] = muon
        groups = [{"params": rest}]
    else:
        groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": rest}]
    optimizers["adamw"] = torch.optim.AdamW([g for g in groups if g["params"]], fused=True, **adam_options)
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers
