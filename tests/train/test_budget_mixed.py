"""Within a budget and with all else at once: Muon, accumulation, averages, saving in the background, more ranks."""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from oarlock.checkpoint import load_checkpoint
from oarlock.parallel import Mesh
from oarlock.train.config import load_config
from oarlock.train.loop import Trainer
from oarlock.train.metrics import read_metrics
from process_group import run_ranks
from tiny_run import recorded

OPTIONS = (
    *("--train.steps", "4", "--train.eval_every", "0", "--train.accumulation", "2"),
    *("--checkpoint.every", "2", "--checkpoint.keep_last", "0", "--checkpoint.background", "true"),
    *("--optimizer.name", "muon", "--ema.decay", "0.9"),
    *("--model.hidden_size", "128", "--model.intermediate_size", "512"),
)
BUDGET = ("--memory.budget", "75%")


def train(config: Path, resume: str, *options: str) -> None:
    Trainer(load_config(config, [*OPTIONS, *options]), resume=resume, mesh=Mesh.build()).run()


def on_two_ranks(runs: list[tuple[Path, str, tuple[str, ...]]]) -> None:
    dist.init_process_group("gloo")
    for config, resume, options in runs:
        train(config, resume, "--train.batch_size", "1", *options)
        dist.barrier()
    dist.destroy_process_group()


def assert_same_checkpoints(run: Path, other: Path, *steps: int) -> None:
    for step in steps:
        mine, wanted = (load_checkpoint(folder / "checkpoints" / f"step-{step:08d}") for folder in (run, other))
        assert mine.groups() == wanted.groups()
        for group in wanted.groups():
            a, b = mine.tensors(group), wanted.tensors(group)
            assert a.keys() == b.keys()
            assert all(torch.equal(a[name], b[name]) for name in b), (step, group)


def test_a_run_whose_states_are_away_is_the_same_and_goes_on_with_other_ranks(
    tiny: Callable[..., Path], tmp_path: Path
) -> None:
    plain, planned = tiny("plain"), tiny("planned")
    one = ("--train.batch_size", "2")
    train(plain, "never", *one)
    train(planned, "never", *one, *BUDGET)
    assert recorded(tmp_path / "planned") == recorded(tmp_path / "plain")
    (plan,) = [r for r in read_metrics(tmp_path / "planned") if r.get("event") == "memory_plan"]
    assert "optimizer states in the second tier" in plan["text"]
    assert_same_checkpoints(tmp_path / "planned", tmp_path / "plain", 2, 4)
    middle = {name: str(tmp_path / name / "checkpoints" / "step-00000002") for name in ("plain", "planned")}
    wide, wide_planned = tiny("wide"), tiny("wide_planned")
    run_ranks(2, on_two_ranks, [(wide, middle["plain"], ()), (wide_planned, middle["planned"], BUDGET)])
    assert recorded(tmp_path / "wide_planned") == recorded(tmp_path / "wide")
    assert_same_checkpoints(tmp_path / "wide_planned", tmp_path / "wide", 4)
