"""Processes that a program starts itself: real ones on gloo."""

import os
import time
from pathlib import Path

import pytest
import torch
from torch.multiprocessing.spawn import ProcessRaisedException

import oarlock.paddle as paddle
import oarlock.paddle.distributed as dist
from oarlock.paddle.distributed import fleet


def write_rank(folder: Path) -> None:
    (folder / os.environ["RANK"]).write_text(os.environ["WORLD_SIZE"])


def write_sum(folder: Path) -> None:
    dist.init_parallel_env()
    total = torch.tensor([1.0 + dist.get_rank()])
    dist.all_reduce(total)
    (folder / f"sum{dist.get_rank()}").write_text(str(float(total)))


def fail(message: str) -> None:
    if os.environ["RANK"] == "1":
        raise ValueError(message)


def test_each_process_has_a_rank_and_one_is_enough(tmp_path: Path) -> None:
    dist.spawn(write_rank, (tmp_path,), nprocs=2)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"0": "2", "1": "2"}
    context = dist.spawn(write_rank, (tmp_path,), nprocs=1, join=False)
    assert context.join(60)
    assert (tmp_path / "0").read_text() == "1"


def test_processes_meet_that_are_waited_for_later(tmp_path: Path) -> None:
    context = dist.spawn(write_sum, (tmp_path,), nprocs=2, join=False, backend="gloo")
    deadline = time.monotonic() + 120
    while not context.join(5):
        assert time.monotonic() < deadline
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"sum0": "3.0", "sum1": "3.0"}


def test_a_failure_comes_back_with_its_words() -> None:
    with pytest.raises(ProcessRaisedException, match="mine"):
        dist.spawn(fail, ("mine",), nprocs=2)
    with pytest.raises(ValueError, match="nprocs = 0"):
        dist.spawn(fail, ("mine",), nprocs=0)


def test_data_parallelism_of_one_process_is_the_network() -> None:
    layer = paddle.nn.Linear(3, 2)
    model = paddle.DataParallel(layer)
    assert torch.equal(model(torch.ones(1, 3)), layer(torch.ones(1, 3)))
    assert [*model.state_dict()] == ["weight", "bias"]
    fleet.init(is_collective=True)
    assert fleet.distributed_model(layer) is layer
    assert fleet.is_first_worker()
