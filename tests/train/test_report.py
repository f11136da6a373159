"""The report says what the metrics say, at any moment of a run, whatever the run's texts contain."""

import math
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oarlock.train.environment import environment
from oarlock.train.metrics import MetricsLog
from oarlock.train.report import smooth, write_report
from oarlock.train.run import RunDirectory


class Text(HTMLParser):
    """The texts of a page in order, without charts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.feed(re.sub(r"<svg.*?</svg>|<style>.*?</style>", "", page, flags=re.S))

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.parts.append(data)

    def after(self, label: str) -> str:
        return self.parts[self.parts.index(label) + 1]


def record(folder: Path, *, steps: int = 40, ended: bool = True) -> None:
    with MetricsLog(folder, tensorboard=False) as log:
        packing = {"documents_per_sequence": 2.31}
        start = {"environment": environment(), "packing": packing, "mask_density": 0.312}
        log.write("event", 0, event="start", num_steps=40, num_parameters=4_212_992, **start)
        log.write("eval", 0, loss=8.0, bits_per_byte=3.5, evaluation_seconds=1.0)
        for step in range(1, steps + 1):
            log.write(
                "train",
                step,
                **{"loss": 8.0 / step, "grad_norm": math.inf if step == 7 else 1.0, "lr": 1e-3, "tokens": 100 * step},
                **{"tokens_per_second": 50.0 + step % 2, "seconds": 2.0 * step, "memory_bytes": 2**30 + step},
                **{"mm_share": 0.5, "flops": 1e9 * step},
            )
            if step % 20 == 0:
                log.write("eval", step, loss=3.0, bits_per_byte=1.9 if step == 20 else 2.0, evaluation_seconds=1.0)
        if ended:
            log.write("event", steps, event="finished", signal="")


def test_the_summary_is_that_of_the_metrics(tmp_path: Path) -> None:
    record(tmp_path / "my run")
    (tmp_path / "my run" / "config.toml").write_text('[train]\nsample = "<b>&"\n')
    path = write_report(tmp_path / "my run", sample="To be\n<i>or not")
    page = path.read_text(encoding="utf-8")
    text = Text(page)
    assert path == tmp_path / "my run" / "report.html"
    assert "4.21M parameters, 40 of 40 steps, finished" in text.parts
    for label, value, note in (
        ("Bits per byte", "2.0000", "validation, best 1.9000 at step 20"),
        ("Training time", "1m20s", "and 3s evaluating"),
        ("Tokens", "4.00k", "50.5 per second"),
        ("Model FLOPs", "4.00e10", "50 % of the matmul peak"),
        ("Peak memory", "1.00 GiB", "Curves"),
    ):
        assert (text.after(label), text.after(value)) == (value, note)
    assert text.after("Training loss") == f"{(8 / 39 + 8 / 40) / 2:.3f}"  # 4 % of 40 steps: one step back
    assert text.after("Mask density") == "0.312"
    assert text.after("Documents per sequence") == "2.31"
    assert text.after("torch") == torch.__version__
    assert "To be\n<i>or not" in text.parts
    assert '[train]\nsample = "<b>&"' in text.parts
    assert 'http-equiv="refresh"' not in page


def test_the_curves_are_drawn_and_skip_what_is_not_finite(tmp_path: Path) -> None:
    record(tmp_path)
    charts = [ET.fromstring(c) for c in re.findall(r"<svg.*?</svg>", write_report(tmp_path).read_text(), flags=re.S)]
    assert [c.get("aria-label") for c in charts] == [
        *("Loss", "Bits per byte", "Learning rate", "Gradient norm", "Throughput", "Share of the matmul peak")
    ]
    gradient = [
        p.attrib["d"] for p in charts[3].iter("{http://www.w3.org/2000/svg}path") if "faint" in p.get("class", "")
    ]
    assert gradient[-1].count("M") == 2  # the infinite one is a gap


@pytest.mark.parametrize("steps", [0, 1, 2, 23])
def test_a_run_can_be_reported_at_any_moment(tmp_path: Path, steps: int) -> None:
    record(tmp_path, steps=steps, ended=False)
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(b'{"kind": "train", "st')  # being written
    page = write_report(tmp_path).read_text()
    assert f"{steps} of 40 steps, not finished" in page
    assert 'http-equiv="refresh" content="30"' in page


def test_a_run_that_goes_on_after_its_end_has_not_ended(tmp_path: Path) -> None:
    record(tmp_path)
    log = MetricsLog(tmp_path, tensorboard=False)
    log.resume(40)
    log.write("event", 40, event="resume", num_steps=80)
    log.close()
    assert "40 of 80 steps, not finished" in write_report(tmp_path).read_text()


@pytest.mark.parametrize(
    ("event", "told"),
    [
        ({"event": "stopped", "signal": "SIGTERM"}, "stopped by SIGTERM"),
        ({"event": "non_finite", "loss": math.nan}, "stopped by a loss that is not finite"),
        ({"event": "non_finite", "loss": 5.8, "grad_norm": math.nan}, "stopped by a gradient norm that is not finite"),
        ({"event": "failed", "error": "OSError: full"}, "ended by an error: OSError: full"),
    ],
)
def test_an_early_end_is_told(tmp_path: Path, event: dict, told: str) -> None:
    record(tmp_path, steps=7, ended=False)
    log = MetricsLog(tmp_path, tensorboard=False)
    log.resume(7)
    log.write("event", 7, **event)
    log.close()
    page = write_report(tmp_path).read_text()
    assert f"7 of 40 steps, {told}" in page
    assert 'http-equiv="refresh"' not in page


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    hostile = '"></pre><script>alert(1)</script>'
    with MetricsLog(tmp_path, tensorboard=False) as log:
        log.write("event", 0, event="start", environment={hostile: hostile}, family=hostile)
        log.write("event", 1, event=hostile, note=hostile)
        log.write("event", 1, event="sample", prompt=hostile, text=hostile)
        log.write("event", 1, event="stopped", signal=hostile)
    (tmp_path / "config.toml").write_text(hostile)
    page = write_report(tmp_path).read_text()
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 8


def test_a_folder_without_metrics_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no metrics in"):
        write_report(tmp_path)
    assert not list(tmp_path.iterdir())


@given(st.lists(st.sampled_from([1.0, 2.0, 5.0, math.nan, math.inf]), max_size=30), st.integers(0, 5))
def test_smoothing_is_the_mean_of_the_window(values: list[float], width: int) -> None:
    result = smooth(values, width)
    for i, value in enumerate(values):
        if not math.isfinite(value):
            assert result[i] is value
            continue
        left = min(i, width)
        window = [v for v in values[i - left : i + left + 1] if math.isfinite(v)]
        assert result[i] == pytest.approx(sum(window) / len(window), rel=1e-12)


def test_a_straight_line_is_not_bent() -> None:
    line = [3.0 - 0.1 * i for i in range(50)]
    assert smooth(line, 8)[:42] == pytest.approx(line[:42])


def test_the_environment_is_plain_and_true() -> None:
    found = environment()
    assert found["threads"] == torch.get_num_threads()
    assert all(isinstance(v, (str, int)) and v for v in found.values())
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        kib = int(re.search(r"MemTotal:\s+(\d+) kB", meminfo.read_text()).group(1))  # type: ignore[union-attr]
        assert found["memory_bytes"] == pytest.approx(kib * 1024, rel=0.01)


@pytest.mark.gpu
def test_the_environment_names_the_device(device: torch.device) -> None:
    found = environment(device)
    assert torch.cuda.get_device_name(device) in str(found["device"])


@pytest.mark.parametrize(
    ("losses", "value", "note"),
    [
        ([3.0, 2.0, math.nan, math.nan], "NaN", "not finite since step 3"),
        ([3.0, math.inf, 2.0, 1.0], "1.000", "nats per token, smoothed, 1 not finite, the first at step 2"),
        ([math.nan], "NaN", "not finite since step 1"),
        ([3.0, 2.0], "2.000", "nats per token, smoothed"),
    ],
)
def test_a_loss_that_is_not_finite_is_told(tmp_path: Path, losses: list[float], value: str, note: str) -> None:
    log = MetricsLog(tmp_path, tensorboard=False)
    log.write("event", 0, event="start", num_steps=10)
    for step, loss in enumerate(losses, 1):
        log.write("train", step, loss=loss)
    log.close()
    text = Text(write_report(tmp_path).read_text())
    assert (text.after("Training loss"), text.after(value)) == (value, note)


def test_every_number_that_is_not_finite_is_named_with_its_steps(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, tensorboard=False) as log:
        log.write("event", 0, event="start", num_steps=10)
        log.write("eval", 0, loss=8.0, bits_per_byte=3.5)
        for step in range(1, 9):
            norm = math.inf if step == 2 else 1.0
            rate = math.nan if step in (3, 5) else 1e-3
            log.write("train", step, loss=-math.inf if step > 6 else 1.0, grad_norm=norm, lr=rate)
        log.write("eval", 8, loss=math.nan, bits_per_byte=math.nan)
    page = write_report(tmp_path).read_text()
    text = Text(page)
    assert (
        "Not finite: loss since step 7 (-Infinity); gradient norm at step 2 (Infinity); lr at 2 steps, the first 3, "
        "the last 5 (NaN); validation loss since step 8 (NaN); validation bits per byte since step 8 (NaN)."
    ) in text.parts
    assert text.after("3.5000") == "validation, the best; not finite since step 8"
    loss = ET.fromstring(re.findall(r"<svg.*?</svg>", page, flags=re.S)[0])
    ticks = [t.text for t in loss.iter("{http://www.w3.org/2000/svg}text") if t.get("text-anchor") == "middle"]
    assert ticks[-1] == "8"  # the axis goes on where the line has ended


def test_the_step_that_was_not_taken_is_not_counted(tmp_path: Path) -> None:
    record(tmp_path, steps=7, ended=False)
    log = MetricsLog(tmp_path, tensorboard=False)
    log.resume(7)
    log.write("event", 8, event="non_finite", loss=math.nan)
    log.close()
    assert "7 of 40 steps, stopped by a loss" in write_report(tmp_path).read_text()


def test_a_run_whose_process_has_died_is_told_from_one_that_goes_on(tmp_path: Path) -> None:
    record(tmp_path, steps=7, ended=False)
    directory = RunDirectory(tmp_path)
    directory.write_status(step=7, steps=40, budget=0.0, finished=False, stopped_by="")
    with directory.claimed():
        page = write_report(tmp_path).read_text()
    assert re.search(r"7 of 40 steps, not finished at \d{4}-\d\d-\d\d \d\d:\d\d UTC<", page)
    assert 'http-equiv="refresh"' in page
    page = write_report(tmp_path).read_text()
    assert "7 of 40 steps, not finished, and no process is training it<" in page
    assert 'http-equiv="refresh"' not in page
