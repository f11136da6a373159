"""`oarlock debug`: a training's steps are traced, drawn, compared, and searched for a NaN."""

import json
import re
from pathlib import Path

import pytest

from oarlock.cli.main import main
from tiny_run import write_config


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three traces: a and b of the same training, c with another learning rate."""
    folder = tmp_path_factory.mktemp("debug")
    config = str(write_config(folder))
    for name, more in (("a", []), ("b", []), ("c", ["--optimizer.learning_rate", "0.01"])):
        words = ["debug", "trace", config, "--dir", str(folder / name), "--steps", "2", "--train.dtype", "fp32", *more]
        assert main(words) == 0
    return folder


def test_equal_trainings_have_equal_traces(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["debug", "diff", str(traces / "a"), str(traces / "b")]) == 0
    assert "the runs are the same" in capsys.readouterr().out


def test_another_learning_rate_shows_at_the_optimizer(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["debug", "diff", str(traces / "a"), str(traces / "c")]) == 1
    report = capsys.readouterr().out
    assert "first record with the same inputs and different outputs" in report
    assert "step 0, forward" in report


def test_a_trace_has_records_of_its_steps_with_stacks(traces: Path) -> None:
    lines = (traces / "a" / "trace.rank0.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines[1:]]
    assert {record["step"] for record in records} == {0, 1}
    named = [record for record in records if record["module"].startswith("layers.1")]
    assert {record["kind"] for record in named} == {"call", "leaf", "node"}
    assert (traces / "a" / "stacks.rank0.jsonl").exists()


@pytest.mark.parametrize(("suffix", "beginning"), [(".html", "<!doctype html>"), (".dot", "digraph {")])
def test_a_trace_is_drawn(traces: Path, suffix: str, beginning: str, tmp_path: Path) -> None:
    out = tmp_path / f"graph{suffix}"
    assert main(["debug", "graph", str(traces / "a"), "--out", str(out), "--step", "1"]) == 0
    assert out.read_text().startswith(beginning)


def test_nan_names_the_producer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(write_config(tmp_path))
    words = [
        "debug",
        "nan",
        config,
        "--dir",
        str(tmp_path / "n"),
        "--steps",
        "4",
        "--optimizer.learning_rate",
        "1e30",
        "--optimizer.name",
        "adamw",
    ]
    assert main([*words, "--schedule.warmup_steps", "0", "--optimizer.clip_norm", "0"]) == 1
    said = capsys.readouterr().out
    failed = re.search(r"^step (\d+): ", said, re.MULTILINE)
    assert failed
    steps = [int(step) for step in re.findall(r"^producer .*, step (\d+)\)$", said, re.MULTILINE)]
    assert steps, said
    assert all(1 <= step <= int(failed[1]) for step in steps), said


def test_user_errors_are_one_line(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["debug", "diff", str(traces), str(traces / "a")]) == 2
    assert "holds no trace" in capsys.readouterr().err
    assert main(["debug", "graph", str(traces / "a"), "--out", "graph.png"]) == 2
    assert "must end in .html or .dot" in capsys.readouterr().err


def test_what_the_command_decides_itself_is_not_taken(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(write_config(traces))
    for command in ("trace", "nan"):
        assert main(["debug", command, config, "--dir", str(traces / "d"), "--train.out", "elsewhere"]) == 2
        assert "--train.out means nothing here: --dir names the folder" in capsys.readouterr().err
        assert not (traces / "d").exists()
    assert main(["debug", "trace", config, "--dir", str(traces / "a")]) == 2
    assert "holds an earlier run; choose another folder with --dir" in capsys.readouterr().err
