"""Runs that go on with another number of ranks: the same weights bit for bit, the same data, the same losses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from oarlock.checkpoint import load_checkpoint, optimizer_tensors
from oarlock.parallel import Mesh
from oarlock.train.config import load_config
from oarlock.train.loop import Trainer
from process_group import run_ranks
from tiny_run import recorded

# Two sequences a step, whatever the ranks; the learning rates are small, for orthogonal updates enlarge what other
# sums round otherwise, step by step.
OPTIONS = (
    *("--train.steps", "6", "--train.eval_every", "0", "--checkpoint.every", "3", "--checkpoint.keep_last", "0"),
    *("--schedule.kind", "constant", "--schedule.warmup_steps", "0", "--checkpoint.background", "true"),
    *("--optimizer.learning_rate", "1e-5", "--optimizer.muon_learning_rate", "1e-5"),
)


def go_on(config: str, resume: str, *options: str) -> None:
    """Train; what is loaded must be what the checkpoint holds, on any rank."""
    trainer = Trainer(load_config(config, [*OPTIONS, *options]), resume=resume, mesh=Mesh.build())
    if resume != "never":
        saved = load_checkpoint(resume)
        parameters = list(trainer.model.named_parameters())
        found = {"model": trainer.model.state_dict()} | {
            f"optimizer_{name}": optimizer_tensors(optimizer, parameters)
            for name, optimizer in trainer.optimizers.items()
        }
        for group, tensors in found.items():
            wanted = saved.tensors(group)
            assert tensors.keys() == wanted.keys()
            assert all(torch.equal(tensors[name], wanted[name]) for name in wanted)
    trainer.run()


def on_two_ranks(runs: list[list[str]]) -> None:
    dist.init_process_group("gloo")
    for config, resume in runs:
        go_on(config, resume, "--train.batch_size", "1")
        dist.barrier()
    dist.destroy_process_group()


def assert_close(records: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert [(r["kind"], r["step"], r["tokens"]) for r in records] == [
        (r["kind"], r["step"], r["tokens"]) for r in wanted
    ]
    for record, other in zip(records, wanted, strict=True):
        assert record["loss"] == pytest.approx(other["loss"], rel=1e-6, abs=0), record["step"]


def test_from_one_rank_to_two_and_back(tiny: Callable[..., Path]) -> None:
    alone, two, widened, again, narrowed = (tiny(name) for name in ("alone", "two", "widened", "again", "narrowed"))
    middle = {run: str(run.with_suffix("") / "checkpoints" / "step-00000003") for run in (alone, two)}
    go_on(str(alone), "never")
    run_ranks(2, on_two_ranks, [[str(two), "never"], [str(widened), middle[alone]], [str(again), middle[two]]])
    go_on(str(narrowed), middle[two])
    ran = {run: recorded(run.with_suffix("")) for run in (alone, two, widened, again, narrowed)}
    later = {run: [r for r in records if r["step"] > 3] for run, records in ran.items()}
    assert_close(ran[two], ran[alone])
    assert_close(ran[widened], later[alone])
    assert_close(ran[narrowed], later[two])
    assert ran[again] == later[two], "bit for bit on as many ranks"
