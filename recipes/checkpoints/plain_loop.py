"""Checkpoints in a training loop of your own: kill it whenever you like, start it again, and it goes on bit for bit.

python recipes/checkpoints/plain_loop.py my_run --steps 40
"""

import argparse

import torch
from torch import nn

from oarlock import checkpoint


def main() -> None:
    """Train up to a step; a run that exists is continued."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    step = 0

    if checkpoint.list_checkpoints(args.folder):
        saved = checkpoint.load_checkpoint(checkpoint.latest_checkpoint(args.folder))  # every byte is verified
        model.load_state_dict(saved.tensors("model"))
        tensors = saved.tensors("optimizer")
        checkpoint.load_optimizer(optimizer, model.named_parameters(), tensors, saved.state["optimizer"])
        schedule.load_state_dict(saved.state["schedule"])
        checkpoint.restore_rng(saved.tensors("rng", rank=0), saved.rank_state(0))
        step = saved.step
        print(f"continuing from step {step}")

    while step < args.steps:
        x = torch.randn(16, 8)
        loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        step += 1
        print(f"step {step} loss {loss.item()!r}")
        if step % args.every == 0 or step == args.steps:
            rng_tensors, rng_state = checkpoint.capture_rng()
            checkpoint.save_checkpoint(
                *(args.folder, step),
                tensors={
                    "model": model.state_dict(),
                    "optimizer": checkpoint.optimizer_tensors(optimizer, model.named_parameters()),
                },
                state={
                    "optimizer": checkpoint.optimizer_state(optimizer, model.named_parameters()),
                    "schedule": schedule.state_dict(),
                },
                rank_tensors={"rng": rng_tensors},
                rank_state=rng_state,
                keep_last=2,
                wait=False,  # it is written while the next steps run; a failure is raised by the next save
            )
    checkpoint.finish_saves()


if __name__ == "__main__":
    main()
