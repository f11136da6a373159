"""The command line as a whole: what it prints when something is wrong, and the status it leaves with."""

import argparse
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from oarlock.cli import main as cli
from oarlock.train.metrics import read_metrics
from tiny_run import environment, write_config


def run_with(action: object, monkeypatch: pytest.MonkeyPatch) -> int:
    """Exit status of a command that does `action`."""

    class Command:
        @staticmethod
        def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
            subparsers.add_parser("doctor").set_defaults(run=action)

    monkeypatch.setattr(cli.importlib, "import_module", lambda _: Command)
    return cli.main(["doctor"])


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ValueError("a wrong value"), 2, "oarlock doctor: a wrong value\n"),
        (MemoryError(), 2, "oarlock doctor: MemoryError\n"),
        (KeyboardInterrupt(), 130, "oarlock doctor: interrupted\n"),
        (BrokenPipeError(), 141, ""),
        (FileNotFoundError("our own words"), 2, "oarlock doctor: our own words\n"),
        (IsADirectoryError(21, "Is a directory", "a/b"), 2, "oarlock doctor: a/b: Is a directory\n"),
        (
            ModuleNotFoundError("No module named 'tyro'", name="tyro"),
            2,
            "oarlock doctor: No module named 'tyro'; install it with: pip install 'oarlock[train]'\n",
        ),
    ],
)
def test_an_error_is_one_line_and_a_status(
    error: BaseException, status: int, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: argparse.Namespace) -> int:
        raise error

    assert run_with(fail, monkeypatch) == status
    assert capsys.readouterr().err == text


def test_an_unknown_option_without_a_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["--bogus"])
    assert "unrecognised arguments: --bogus" in capsys.readouterr().err


def test_a_warning_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def warn(_: argparse.Namespace) -> int:
        warnings.simplefilter("always")
        warnings.warn("this is slow", stacklevel=2)
        return 0

    assert run_with(warn, monkeypatch) == 0
    assert capsys.readouterr().err == "oarlock doctor: this is slow\n"


@pytest.mark.parametrize(("close", "status"), [("| head -n 1; exit ${PIPESTATUS[0]}", (0, 141)), (">&-", (0,))])
def test_nobody_has_to_read_the_output(close: str, status: tuple[int, ...], tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[train]\nsteps = 1\n", encoding="utf-8")
    command = f'"{sys.executable}" -m oarlock train "{config}" --options {close}'
    done = subprocess.run(["bash", "-c", command], env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode in status
    assert done.stderr == ""


def test_a_run_goes_on_though_nobody_reads_its_configuration(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    done = subprocess.run(
        ["bash", "-c", f'"{sys.executable}" -m oarlock train "{config}" --train.steps 1 --train.sample oár | true'],
        env=environment() | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Error" not in done.stderr
    assert (tmp_path / "run" / "hf").is_dir()
    samples = [r for r in read_metrics(tmp_path / "run") if r.get("event") == "sample"]
    assert samples[0]["prompt"] == "oár"


def test_ctrl_c_is_one_line(tmp_path: Path) -> None:
    """The command waits for text from a pipe, where the signal reaches it for sure."""
    pipe = tmp_path / "prompts"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "oarlock", "generate", ".", "--prompts", str(pipe)]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    writer, deadline = None, time.monotonic() + 60
    while writer is None and time.monotonic() < deadline:
        try:
            writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # the command has not opened it yet
            time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    try:
        output = process.communicate(timeout=30)
    finally:
        process.kill()
        if writer is not None:
            os.close(writer)
    assert (process.returncode, *output) == (130, "", "oarlock generate: interrupted\n")
