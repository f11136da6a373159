"""Gradients between data-parallel processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from oarlock.paddle.distributed.communication.group import get_group


def fused_allreduce_gradients(parameter_list: Iterable[Tensor], hcg: Any = None) -> None:
    """Average the gradients over the data-parallel processes, in one message.

    Args:
        parameter_list: those without a gradient are left out; the same on all processes.
        hcg: the layout of `fleet.init`; None for all processes.
    """
    group = get_group(0) if hcg is None else hcg.get_data_parallel_group()
    if group.nranks == 1:
        return
    by_kind: dict[tuple[Any, ...], list[Tensor]] = {}
    for parameter in parameter_list:
        if parameter.grad is not None:
            by_kind.setdefault((parameter.grad.dtype, parameter.grad.device), []).append(parameter.grad)
    for grads in by_kind.values():
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat, group=group.process_group)
        flat.div_(group.nranks)
        for grad, part in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view_as(grad))
