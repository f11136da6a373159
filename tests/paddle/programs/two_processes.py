"""Data parallelism in two processes that the program itself starts: `python two_processes.py FOLDER`."""

import json
import os
import sys

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import nn


def train(folder):
    dist.init_parallel_env()
    rank = dist.get_rank()
    layer = nn.Linear(4, 2)
    for number, parameter in enumerate(layer.parameters()):
        drawn = np.random.RandomState(number).standard_normal(list(parameter.shape))
        parameter.set_value(drawn.astype("float32"))
    model = paddle.DataParallel(layer)
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    losses = []
    for step in range(3):
        rows = np.random.RandomState(10 * step + rank).standard_normal((4, 4)).astype("float32")
        loss = (model(paddle.to_tensor(rows)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(float(total))
    with model.no_sync():
        model(paddle.full([2, 4], 1.0 + rank)).sum().backward()
    alone = float(layer.weight.grad.sum())
    model(paddle.full([2, 4], 1.0 + rank)).sum().backward()
    both = float(layer.weight.grad.sum())
    names = [*model.state_dict()], [name for name, _ in model.named_parameters()]
    model.set_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})
    everybody = []
    dist.all_gather_object(
        everybody,
        {"rank": rank, "weight": float(layer.weight.abs().sum()), "alone": alone, "both": both, "names": names},
    )
    if rank == 0:
        with open(os.path.join(folder, "two_processes.json"), "w") as file:
            json.dump({"losses": losses, "everybody": everybody}, file)


if __name__ == "__main__":
    dist.spawn(train, args=(sys.argv[1],), nprocs=2, backend="gloo")
