"""`oarlock train` as a user meets it: what it prints before and after a run, and the sample it takes."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oarlock.cli import train as command
from oarlock.cli.main import main
from oarlock.train.data import CorpusConfig, prepare
from oarlock.train.loop import Trainer
from oarlock.train.metrics import read_metrics
from tiny_run import write_config


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Path]:
    return lambda name="run": write_config(tmp_path, name)


def samples(run: Path) -> list[tuple[int, str, str]]:
    events = [record for record in read_metrics(run) if record.get("event") == "sample"]
    return [(event["step"], event["prompt"], event["text"]) for event in events]


def test_the_sample_of_the_report_is_that_of_the_finished_model(
    tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny()
    command = ["train", str(path), "--resume", "auto", "--train.sample=--oar"]  # a text, whatever it looks like
    for steps in ("2", "2", "3"):
        assert main([*command, "--train.steps", steps]) == 0
    found = samples(path.with_suffix(""))
    assert [step for step, _, _ in found] == [2, 3]
    assert all(prompt == "--oar" and text for _, prompt, text in found)
    assert "no sample" not in capsys.readouterr().err


def test_a_run_whose_sample_fails_has_succeeded(tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--train.steps", "1", "--data.sequence_length", "4", "--train.sample", "a b c d e f g"]
    assert main(["train", str(tiny()), *options]) == 0
    assert "no sample: prompt 0 has" in capsys.readouterr().err


def test_the_prompt_comes_from_the_text_that_was_held_out(
    tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tiny()
    (tmp_path / "held-out.txt").write_text("Row, row, row your boat gently down\nthe stream", encoding="utf-8")
    options = ["--train.steps", "2", "--data.validation", str(tmp_path / "held-out.txt")]
    assert main(["train", str(path), *options]) == 0
    assert "\nRow, row, row your boat gently" in capsys.readouterr().out
    ((_, prompt, text),) = samples(path.with_suffix(""))
    assert prompt == "Row, row, row your boat gently"
    shutil.rmtree(tmp_path / "corpus")  # a finished run is sampled again without its text, and not recorded twice
    assert main(["train", str(path), *options, "--resume", "auto"]) == 0
    assert f"{prompt}{text}" in capsys.readouterr().out
    assert len(samples(path.with_suffix(""))) == 1


@pytest.mark.parametrize(
    ("text", "max_tokens", "opening"),
    [
        ("\n\n# A title\n\nText", 100, "# A title"),
        ("海舟木櫂" * 30, 5, "海"),  # five tokens are five bytes: one character and two thirds
        ("one two three four", 0, ""),
    ],
)
def test_the_opening_of_a_text(text: str, max_tokens: int, opening: str, tmp_path: Path) -> None:
    for name, content in (("train.txt", "a b c"), ("held-out.txt", text)):
        (tmp_path / name).write_text(content, encoding="utf-8")
    config = CorpusConfig(corpus=str(tmp_path), validation=str(tmp_path / "held-out.txt"), vocab_size=257)
    assert command.opening_words(prepare(config, tmp_path / "cache"), max_tokens) == opening


def test_the_configuration_is_printed_once_it_is_known_to_fit(
    tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "vocab_size": 280,
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 1,
                "num_key_value_heads": 1,
                "rms_norm_eps": 1e-5,
                "rope_theta": 1e4,
                "max_position_embeddings": 64,
            }
        )
    )
    wrong = ["--model.config", str(tmp_path / "config.json")]
    assert main(["train", str(tiny()), "--train.steps", "1", *wrong]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "the model 280 embeddings; raise vocab_size in" in captured.err
    assert not (tmp_path / "run").exists()
    assert main(["train", str(tiny()), "--train.steps", "1", *wrong, "--data.vocab_size", "270"]) == 0
    assert "[model]\n" in capsys.readouterr().out


def test_the_command_to_go_on_with_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a place" / "bin"
    folder.mkdir(parents=True)
    python, script = folder / "python", folder / "oarlock"
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.chdir(tmp_path)
    assert shlex.split(command.own_command()) == ["a place/bin/python", "-m", "oarlock"]
    script.write_text("#!/bin/sh\necho it runs\n")
    script.chmod(0o755)
    assert shlex.split(command.own_command()) == ["a place/bin/oarlock"]
    assert subprocess.check_output(command.own_command(), shell=True, text=True) == "it runs\n"
    monkeypatch.chdir(folder)
    assert shlex.split(command.own_command()) == ["./oarlock"]
    monkeypatch.setenv("PATH", f"{folder}:{os.defpath}")
    assert command.own_command() == "oarlock"


@pytest.mark.parametrize("stopped", [False, True])
def test_the_end_tells_where_the_memory_was_written(
    tiny: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stopped: bool,
) -> None:
    path = tmp_path / "memory.html"
    if stopped:
        step = Trainer._step
        monkeypatch.setattr(Trainer, "_step", lambda self, *rest: step(self, *rest) or True)
    command = ["train", str(tiny()), "--train.steps", "2", "--memory.record", str(path), "--resume", "auto"]
    assert main(command) == 0
    lines = capsys.readouterr().err.splitlines()
    assert f"memory    {path}" in lines
    assert any(line.startswith("weights   ") for line in lines) is not stopped
    assert path.exists()
    if not stopped:
        assert main(command) == 0  # it has finished: nothing is recorded
        assert f"memory    {path}" not in capsys.readouterr().err.splitlines()
