"""Metrics: strict JSON, every step once after any crash, and TensorBoard's own reader sees the same."""

import errno
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oarlock.train.metrics import MetricsLog, read_metrics


def strict(line: str) -> dict[str, object]:
    def refuse(name: str) -> float:
        raise ValueError(f"{name} is not JSON")

    return json.loads(line, parse_constant=refuse)


def test_lines_are_strict_json_and_read_back(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "run", tensorboard=False) as log:
        log.write("event", 0, event="start", text="NaN ≠ \ud800 \n two", nested={"a": [1, math.inf]})
        log.write("train", 1, loss=math.nan, grad_norm=math.inf, lr=1e-3, tokens=8192, note=None)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2
    assert strict(lines[1]) == {
        **{"kind": "train", "step": 1, "loss": "NaN", "grad_norm": "Infinity"},
        **{"lr": 1e-3, "tokens": 8192, "note": None},
    }
    event, train = read_metrics(tmp_path / "run")
    assert event["text"] == "NaN ≠ ? \n two"  # strings of events stay strings
    assert event["nested"] == {"a": [1, "Infinity"]}
    assert math.isnan(train["loss"])
    assert train["grad_norm"] == math.inf


def test_each_line_is_on_disk_at_once(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, tensorboard=False)
    for step in range(3):
        log.write("train", step, loss=1.0)
        assert [r["step"] for r in read_metrics(tmp_path)] == list(range(step + 1))
    log.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 8), max_size=20), st.integers(-1, 9), st.integers(0, 60))
def test_resume_keeps_exactly_the_whole_lines_up_to_the_step(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], resumed: int, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    with MetricsLog(folder, tensorboard=False) as log:
        for index, step in enumerate(steps):
            log.write("train", step, index=index)
    path = folder / "metrics.jsonl"
    torn = path.read_bytes()[: max(0, path.stat().st_size - cut)] if steps else b""
    path.write_bytes(torn)
    whole = [json.loads(line) for line in torn.split(b"\n")[:-1]]
    with MetricsLog(folder, tensorboard=False) as log:
        log.resume(resumed)
        log.write("train", resumed + 1, index=-1)
    want = [r["index"] for r in whole if r["step"] <= resumed] + [-1]
    assert [r["index"] for r in read_metrics(folder)] == want


def test_the_cut_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MetricsLog(tmp_path, tensorboard=False) as log:
        for step in range(5):
            log.write("train", step, loss=1.0)
    before = (tmp_path / "metrics.jsonl").read_bytes()

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        MetricsLog(tmp_path, tensorboard=False).resume(2)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_an_earlier_run_is_not_written_into(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, tensorboard=False) as log:
        log.write("train", 1, loss=1.0)
    with pytest.raises(FileExistsError, match="--resume auto"):
        MetricsLog(tmp_path, tensorboard=False).write("train", 1, loss=2.0)
    assert len(read_metrics(tmp_path)) == 1


def test_a_damaged_line_is_named_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train", "step": 1}\n{"kind": "tra\n{"kind": "train", "step": 3}\n{"kind":')
    with pytest.warns(UserWarning, match=r"metrics\.jsonl:2: not a line of metrics"):
        assert [r["step"] for r in read_metrics(path)] == [1, 3]


def test_mistakes_are_named(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "run", tensorboard=False)
    with pytest.raises(TypeError, match=r"metric loss is a Tensor.*\.item\(\)"):
        log.write("train", 1, loss=torch.tensor(1.0))
    with pytest.raises(ValueError, match="got 'test'"):
        log.write("test", 1)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()
    with pytest.raises(FileNotFoundError, match="no metrics in"):
        read_metrics(tmp_path)


def test_tensorboard_shows_every_step_once_after_a_resume(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with MetricsLog(tmp_path) as log:
        for step in range(1, 8):
            log.write("train", step, loss=1.0 * step, note="text is not drawn")
        log.write("eval", 4, bits_per_byte=2.0)
    time.sleep(1.1)  # TensorBoard orders event files by a name that counts seconds
    with MetricsLog(tmp_path) as log:
        log.resume(4)
        for step in range(5, 10):
            log.write("train", step, loss=10.0 * step)
    reader = EventAccumulator(str(tmp_path / "tb"))
    reader.Reload()
    assert reader.Tags()["scalars"] == ["train/loss", "eval/bits_per_byte"]
    seen = [(e.step, e.value) for e in reader.Scalars("train/loss")]
    assert seen == [(s, float(s)) for s in range(1, 5)] + [(s, 10.0 * s) for s in range(5, 10)]
    assert seen == [(r["step"], r["loss"]) for r in read_metrics(tmp_path) if r["kind"] == "train"]


def test_without_tensorboard_only_asking_for_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"train\.tensorboard = false"):
        MetricsLog(tmp_path)
    with MetricsLog(tmp_path, tensorboard=False) as log:
        log.write("train", 1, loss=1.0)


KILLED = """
import sys
from oarlock.train.metrics import MetricsLog
log = MetricsLog(sys.argv[1], tensorboard=False)
log.resume(int(sys.argv[2]))
for step in range(int(sys.argv[2]) + 1, 10**9):
    log.write("train", step, loss=1.0 / step, filler="x" * 300)
    if step == int(sys.argv[2]) + 50:
        print("going", flush=True)
"""


@pytest.mark.timeout(60)
def test_killed_runs_leave_every_step_once(tmp_path: Path) -> None:
    resumed = 0
    for _ in range(2):
        command = [sys.executable, "-c", KILLED, str(tmp_path), str(resumed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "going\n"
            process.kill()
        resumed += 40
    log = MetricsLog(tmp_path, tensorboard=False)
    log.resume(resumed)
    assert [r["step"] for r in read_metrics(tmp_path)] == list(range(1, resumed + 1))


class FillingDisk:
    """A file on a disk that takes `room` bytes more."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: bytes) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.file.write(data[: self.room])
        self.room -= written
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_a_full_disk_is_named_and_loses_at_most_the_last_line(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, tensorboard=False) as log:
        log.write("train", 1, loss=1.0)
        log._file = FillingDisk(log._file, room=7)  # pyright: ignore
        with pytest.raises(OSError, match=r"No space left on device: '.*metrics\.jsonl'"):
            log.write("train", 2, loss=2.0)
    assert [r["step"] for r in read_metrics(tmp_path)] == [1]
