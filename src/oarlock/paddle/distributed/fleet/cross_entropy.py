"""Cross entropy over a vocabulary that tensor-parallel processes share, without gathering the logits."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from oarlock.paddle.distributed.communication.group import Group
from oarlock.paddle.distributed.fleet.topology import get_hybrid_communicate_group


class _SharedVocabulary(torch.autograd.Function):
    """loss = log(sum over all v of exp(x_v)) - x_label, where each process holds consecutive v."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, label: Tensor, group: Group, ignore_index: int) -> Tensor:
        size = logits.shape[-1]
        x = logits.float()
        largest = x.amax(-1, keepdim=True)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group.process_group)
        weights = (x - largest).exp()
        total = weights.sum(-1, keepdim=True)
        local = label - group.rank * size
        here = (local >= 0) & (local < size) & (label != ignore_index)
        local = local.clamp(0, size - 1).unsqueeze(-1)
        chosen = torch.where(here.unsqueeze(-1), (x - largest).gather(-1, local), torch.zeros_like(largest))
        both = torch.stack([total, chosen])
        dist.all_reduce(both, group=group.process_group)
        ignored = (label == ignore_index).unsqueeze(-1)
        ctx.save_for_backward(weights / both[0], local, here, ignored)
        ctx.dtype = logits.dtype
        return (both[0].log() - both[1]).masked_fill(ignored, 0).to(logits.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        shares, local, here, ignored = ctx.saved_tensors
        made = shares.scatter_add(-1, local, -here.unsqueeze(-1).to(shares.dtype)).masked_fill(ignored, 0)
        return (made * grads[0].float()).to(ctx.dtype), None, None, None


class ParallelCrossEntropy(nn.Module):
    """Cross entropy of each token, not reduced; the vocabulary is cut evenly over the tensor-parallel processes.

    Args:
        ignore_index: a label whose tokens get loss 0.
    """

    def __init__(self, mp_group: Group | None = None, name: str | None = None, ignore_index: int = -100) -> None:
        super().__init__()
        self.group = get_hybrid_communicate_group().get_model_parallel_group() if mp_group is None else mp_group
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, label: Tensor) -> Tensor:
        """Logits [..., V/N] and labels [...] or [..., 1] of global indices -> losses [..., 1]."""
        if label.ndim == input.ndim:
            label = label.squeeze(-1)
        if self.group.nranks > 1:
            return _SharedVocabulary.apply(input, label, self.group, self.ignore_index)
        flat = functional.cross_entropy(
            input.reshape(-1, input.shape[-1]), label.reshape(-1), reduction="none", ignore_index=self.ignore_index
        )
        return flat.reshape(*label.shape, 1)
