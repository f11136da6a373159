"""Train in 60 % of the memory, in a loop of your own:  python recipes/offload/plain_loop.py [--budget 60%]

Prints each step's loss and measured peak; the losses are those of a run with everything kept (--budget 200%).
"""

import argparse

import torch
from torch import Tensor, nn

from oarlock.memory.offload import HostTier, make_plan, profile


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


parser = argparse.ArgumentParser()
parser.add_argument("--budget", default="60%")
budget = parser.parse_args().budget

torch.manual_seed(0)
model = nn.Sequential(*(Block(64) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
batches = torch.randn(6, 512, 64)


def forward_and_backward(x: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = (model(x) - x.flip(-1)).square().mean()
    loss.backward()
    return loss.detach()


with HostTier(out_rate=500e6, in_rate=500e6) as tier:
    forward_and_backward(batches[0])
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()  # on gradients of zero: makes the states, so that they are measured, too
    plan = make_plan(
        profile(model, lambda: forward_and_backward(batches[0]), tier=tier, optimizers=[optimizer]), budget
    )
    print(plan)
    with plan.apply(model, tier=tier, optimizers=[optimizer]) as run:
        for step, x in enumerate(batches):
            run.new_step()
            loss = forward_and_backward(x)
            optimizer.step()
            print(f"step {step} loss {loss.item()!r} peak {run.peak} of {plan.budget}")
