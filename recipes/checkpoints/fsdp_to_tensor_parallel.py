"""From FSDP2 to tensor parallelism: a run goes on with every matrix cut another way, on as many ranks as you like.

    torchrun --standalone --nproc-per-node 2 recipes/checkpoints/fsdp_to_tensor_parallel.py my_run fsdp --steps 5
    torchrun --standalone --nproc-per-node 2 recipes/checkpoints/fsdp_to_tensor_parallel.py my_run tensor --steps 9

The second command continues what the first one saved, weights and optimizer. Each rank reads only the bytes of its own
parts. Any other pair of layouts works the same, since a DTensor says itself which part of the whole it is.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from oarlock import checkpoint
from oarlock.parallel import leave


class Block(nn.Module):
    """A residual MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, width] -> [B, width]."""
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def sharded(model: nn.Sequential, layout: str) -> nn.Sequential:
    """The model with DTensors for parameters."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model:
        if layout == "fsdp":
            fully_shard(block, mesh=mesh)
        else:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return fully_shard(model, mesh=mesh) if layout == "fsdp" else model


def with_state(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer with the tensors that it would make in its first step, so that they can be filled."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    return optimizer


def main() -> None:
    """Train up to a step in one of the layouts; a run that exists is continued from whatever layout it had."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("layout", choices=("fsdp", "tensor"))
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = sharded(nn.Sequential(Block(16), Block(16)), args.layout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    step = 0

    if checkpoint.list_checkpoints(args.folder):
        saved = checkpoint.load_checkpoint(checkpoint.latest_checkpoint(args.folder), verify="read")
        saved.load("model", model.state_dict())
        moments = checkpoint.optimizer_tensors(with_state(optimizer), model.named_parameters())
        report = saved.load("optimizer", moments)
        step = saved.step
        if dist.get_rank() == 0:
            print(f"continuing from step {step}: {report}")

    while step < args.steps:
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))  # the same on all ranks
        loss = (model(x) - x.roll(1, dims=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item()!r}")
    checkpoint.save_checkpoint(
        *(args.folder, step),
        tensors={
            "model": model.state_dict(),
            "optimizer": checkpoint.optimizer_tensors(optimizer, model.named_parameters()),
        },
    )
    dist.barrier()  # no rank leaves while another one still talks to it
    leave()


if __name__ == "__main__":
    main()
