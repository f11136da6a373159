"""Sequence parallelism: between tensor-parallel layers each process of the group holds a part of the sequence.

    S = sequence length (the first dimension), N = processes of the tensor-parallel group

Every operation moves between [S, ...] and [S/N, ...]; its backward is its counterpart:

    ScatterOp        cut            <->  gather        activations enter the region
    GatherOp         gather         <->  cut           activations leave it
    AllGatherOp      gather         <->  reduce-scatter   before a column-parallel layer
    ReduceScatterOp  reduce-scatter <->  gather        after a row-parallel layer
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from oarlock.paddle.distributed.communication.group import Group
from oarlock.paddle.distributed.fleet.topology import get_hybrid_communicate_group


def _group() -> Group:
    return get_hybrid_communicate_group().get_model_parallel_group()


def scatter(x: Tensor) -> Tensor:
    """[S, ...] -> this process's [S/N, ...].

    Raises:
        ValueError: S is not a multiple of N.
    """
    group = _group()
    if x.shape[0] % group.nranks:
        raise ValueError(f"a sequence of {x.shape[0]} cannot be cut evenly over {group.nranks} processes; pad it")
    return x if group.nranks == 1 else x.chunk(group.nranks, 0)[group.rank].contiguous()


def all_gather(x: Tensor) -> Tensor:
    """[S/N, ...] of each process -> [S, ...]."""
    group = _group()
    if group.nranks == 1:
        return x
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(group.nranks)]
    dist.all_gather(parts, x.contiguous(), group.process_group)
    return torch.cat(parts)


def reduce_scatter(x: Tensor) -> Tensor:
    """The sum over the processes of [S, ...], of which this one gets its [S/N, ...]."""
    group = _group()
    if group.nranks == 1:
        return x
    if x.shape[0] % group.nranks:
        raise ValueError(f"a sequence of {x.shape[0]} cannot be cut evenly over {group.nranks} processes; pad it")
    parts = [part.contiguous() for part in x.chunk(group.nranks, 0)]
    made = torch.empty_like(parts[0])
    dist.reduce_scatter(made, parts, group=group.process_group)
    return made


class ScatterOp(torch.autograd.Function):
    """Cut the sequence; backward gathers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """[S, ...] -> [S/N, ...]."""
        return scatter(x).view_as(x) if _group().nranks == 1 else scatter(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """[S/N, ...] -> [S, ...]."""
        return all_gather(grads[0])


class GatherOp(torch.autograd.Function):
    """Gather the sequence; backward cuts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """[S/N, ...] -> [S, ...]."""
        return x.view_as(x) if _group().nranks == 1 else all_gather(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """[S, ...] -> [S/N, ...]."""
        return scatter(grads[0])


class AllGatherOp(torch.autograd.Function):
    """Gather the sequence; backward sums and cuts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """[S/N, ...] -> [S, ...]."""
        return x.view_as(x) if _group().nranks == 1 else all_gather(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """[S, ...] -> [S/N, ...]."""
        return reduce_scatter(grads[0])


class ReduceScatterOp(torch.autograd.Function):
    """Sum and cut; backward gathers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """[S, ...] -> [S/N, ...]."""
        return x.view_as(x) if _group().nranks == 1 else reduce_scatter(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """[S/N, ...] -> [S, ...]."""
        return all_gather(grads[0])


def mark_as_sequence_parallel_parameter(parameter: Tensor) -> None:
    """Say that each process sees only a part of the sequence for this parameter, so that gradients must be summed."""
    parameter.sequence_parallel = True  # type: ignore[attr-defined]


def is_sequence_parallel_parameter(parameter: Tensor) -> bool:
    """Whether it was marked."""
    return getattr(parameter, "sequence_parallel", False)


def register_sequence_parallel_allreduce_hooks(
    model: nn.Module, accumulation_steps: int, fuse_sequence_parallel_allreduce: bool = False
) -> None:
    """Sum the gradients of marked parameters over the group, after every `accumulation_steps` backward passes.

    Args:
        fuse_sequence_parallel_allreduce: taken; one message per parameter is sent either way.
    """
    group = _group()
    if group.nranks == 1:
        return
    for parameter in model.parameters():
        if is_sequence_parallel_parameter(parameter):
            parameter.register_post_accumulate_grad_hook(_Summed(group, accumulation_steps))


class _Summed:
    """Counts the backward passes of a parameter."""

    def __init__(self, group: Group, every: int) -> None:
        self.group, self.every, self.seen = group, every, 0

    def __call__(self, parameter: Tensor) -> None:
        self.seen += 1
        if self.seen % self.every == 0:
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, group=self.group.process_group)
