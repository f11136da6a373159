"""Averages of gradients over processes, against their definition."""

from collections.abc import Callable

import torch

import oarlock.paddle.distributed as dist
from oarlock.paddle.distributed import fleet
from process_group import run_ranks


def formula(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Says which API a check covers; the coverage page reads it."""
    return lambda check: check


def worker() -> list[list[float]]:
    """Gradients rank + 1, 2 * rank: their means over two processes."""
    dist.init_parallel_env()
    parameters = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1, 2, dtype=torch.float64))]
    for factor, parameter in enumerate(parameters, 1):
        parameter.grad = torch.full_like(parameter, factor * dist.get_rank() + 1.0)
    parameters.append(torch.nn.Parameter(torch.zeros(1)))  # without a gradient
    fleet.utils.hybrid_parallel_util.fused_allreduce_gradients(parameters)
    assert parameters[-1].grad is None
    found = [p.grad.flatten().tolist() for p in parameters if p.grad is not None]
    dist.barrier()
    dist.destroy_process_group()
    return found


@formula("paddle.distributed.fleet.utils.hybrid_parallel_util.fused_allreduce_gradients")
def test_the_mean_over_the_processes() -> None:
    for found in run_ranks(2, worker, timeout=120):
        assert found == [[1.5, 1.5], [2.0, 2.0]]
