"""A run that is killed, asked to stop, or moved goes on as if nothing had happened."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from oarlock.checkpoint import list_checkpoints, load_checkpoint
from oarlock.memory import OutOfMemoryError
from oarlock.train.config import load_config
from oarlock.train.loop import train
from tiny_run import finish, recorded, start_training, wait_for_step


def same_weights(a: Path, b: Path) -> bool:
    first, second = (load_file(run / "hf" / "model.safetensors") for run in (a, b))
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def reference_run(config: Path) -> Path:
    status, output = finish(start_training(config))
    assert status == 0, output
    return config.with_suffix("")


def test_kill_nine_at_random_moments_leaves_no_trace(tiny: Callable[..., Path]) -> None:
    """SIGKILL, also in the middle of saves (every step saves); the resumed run equals an undisturbed one bitwise."""
    undisturbed = reference_run(tiny("undisturbed"))
    config = tiny("killed")
    run = config.with_suffix("")
    generator = random.Random(7)
    for step in (2, 6, 9):
        process = start_training(config, "--resume", "auto")
        wait_for_step(process, run, step)
        # A step with its save takes some 20 ms: the kill lands before, in or after the save.
        time.sleep(generator.random() * 0.03)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        for found in list_checkpoints(run / "checkpoints"):
            load_checkpoint(found)  # raises if it is not whole
    status, output = finish(start_training(config, "--resume", "auto"))
    assert status == 0, output
    assert recorded(run) == recorded(undisturbed)
    steps = [r["step"] for r in recorded(run) if r["kind"] == "train"]
    assert steps == list(range(1, 13))
    assert same_weights(run, undisturbed)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_polite_signal_saves_and_leaves(tiny: Callable[..., Path], number: signal.Signals) -> None:
    config = tiny("asked")
    run = config.with_suffix("")
    options = ("--train.steps", "100000", "--checkpoint.every", "0", "--train.eval_every", "0")
    process = start_training(config, *options)
    wait_for_step(process, run, 3)
    process.send_signal(number)
    status, output = finish(process)
    assert status == 0, output
    stopped = json.loads((run / "status.json").read_text())
    assert stopped["stopped_by"] == number.name
    assert not stopped["finished"]
    (saved,) = list_checkpoints(run / "checkpoints")
    assert load_checkpoint(saved).step == stopped["step"] == recorded(run)[-1]["step"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_that_comes_twice_is_one_request(tiny: Callable[..., Path], number: signal.Signals) -> None:
    """Launchers hand on to their workers what a scheduler has sent to every process of a job."""
    config = tiny("asked")
    process = start_training(config, "--train.steps", "100000", "--checkpoint.every", "0")
    wait_for_step(process, config.with_suffix(""), 3)
    for _ in range(3):
        process.send_signal(number)
        time.sleep(0.002)
    status, output = finish(process)
    assert status == 0, output
    assert len(list_checkpoints(config.with_suffix("") / "checkpoints")) == 1


def test_a_second_ctrl_c_interrupts_in_one_line(tiny: Callable[..., Path]) -> None:
    """Two at once find the process before its next step ends; it has not saved since the last checkpoint."""
    config = tiny("asked")
    long = ("--data.sequence_length", "64", "--train.accumulation", "400", "--train.steps", "1000")
    process = start_training(config, *long, "--checkpoint.every", "0", "--train.eval_every", "0")
    wait_for_step(process, config.with_suffix(""), 1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    status, output = finish(process)
    assert status == 130, output
    assert output.endswith("oarlock train: interrupted\n")
    assert "Traceback" not in output


def test_one_rank_is_asked_and_all_leave(tiny: Callable[..., Path]) -> None:
    """Then the run goes on with another number of ranks, through what is left of its budget."""
    config = tiny("asked")
    run = config.with_suffix("")
    options = ("--train.steps", "0", "--train.flops", "2e9", "--train.eval_every", "0", "--train.batch_size", "1")
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node=2")
    process = start_training(config, *options, launcher=launcher)
    wait_for_step(process, run, 3)
    os.kill(int(subprocess.check_output(["pgrep", "-P", str(process.pid)]).split()[-1]), signal.SIGTERM)
    status, output = finish(process)
    assert status == 0, output
    stopped = json.loads((run / "status.json").read_text())
    assert stopped["step"] < stopped["steps"]
    status, output = finish(start_training(config, "--resume", "auto", *options))
    assert status == 0, output
    records = [r for r in recorded(run) if r["kind"] == "train"]
    assert [r["step"] for r in records] == list(range(1, len(records) + 1))
    assert records[-1]["flops"] == pytest.approx(2e9, rel=0.02)
    assert len(records) == pytest.approx(2 * stopped["steps"] - stopped["step"], rel=0.02)


def test_resuming_refuses_another_model_or_other_data(tiny: Callable[..., Path]) -> None:
    path = tiny()
    train(load_config(path, ["--train.steps", "2"]))
    for override, value in (("--model.hidden_size", "64"), ("--data.vocab_size", "310"), ("--train.seed", "1")):
        with pytest.raises(ValueError, match=f"cannot resume: {override[2:]}"):
            train(load_config(path, [override, value]), resume="auto")


def test_an_earlier_run_is_never_overwritten(tiny: Callable[..., Path]) -> None:
    path = tiny()
    result = train(load_config(path, ["--train.steps", "2"]))
    before = {p: p.read_bytes() for p in result.directory.rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match="holds an earlier run"):
        train(load_config(path, ["--train.steps", "3"]))
    assert {p: p.read_bytes() for p in result.directory.rglob("*") if p.is_file()} == before


def test_a_run_that_was_refused_before_its_first_step_may_begin_again(tiny: Callable[..., Path]) -> None:
    path = tiny()
    with pytest.raises(OutOfMemoryError):
        train(load_config(path, ["--train.steps", "2", "--memory.budget", "1KB"]))
    assert train(load_config(path, ["--train.steps", "2"])).step == 2
    assert [record["step"] for record in recorded(path.with_suffix("")) if record["kind"] == "train"] == [1, 2]


def test_checkpoints_are_never_overwritten_whatever_the_metrics_say(tiny: Callable[..., Path]) -> None:
    path = tiny()
    folder = train(load_config(path, ["--train.steps", "2"])).directory
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(line for line in lines if '"kind": "train"' not in line))
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match="holds an earlier run"):
        train(load_config(path, ["--train.steps", "3"]))
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_more_steps_may_be_asked_for_when_resuming(tiny: Callable[..., Path]) -> None:
    path = tiny()
    train(load_config(path, ["--train.steps", "2"]))
    assert train(load_config(path, ["--train.steps", "4"]), resume="auto").step == 4
