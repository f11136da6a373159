"""Progress: the plain line word for word, the live line through a real pseudo-terminal, silence on other ranks."""

import io
import math
import os
import pty
import re
import subprocess
import sys

import pytest

from oarlock.train.progress import Progress, step_text


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def values(**changed: float | None) -> dict[str, float | None]:
    known = {
        "loss": 3.2141,
        "grad_norm": 0.91,
        "lr": 1e-3,
        "tokens_per_second": 9800.0,
        "mm_share": 0.62,
        "memory_bytes": 1.21 * 2**30,
    }
    return {**known, **changed}


def test_the_plain_line() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(800, every=10, stream=stream, clock=clock)
    progress.start(119)
    clock.now += 0.367647
    progress.update(120, **values())
    assert stream.getvalue() == (
        "step   120/800  15.0%  loss 3.214  grad 0.91  lr 1.0e-3  9.80k tok/s  mm 0.62  mem 1.21 GiB  eta 4m10s\n"
    )


def test_what_is_unknown_is_left_out_and_what_is_not_finite_is_shown() -> None:
    stream = io.StringIO()
    Progress(10, stream=stream).update(10, **values(loss=math.nan, lr=None, mm_share=None, memory_bytes=None))
    assert stream.getvalue() == "step    10/10  100.0%  loss nan  grad 0.91  9.80k tok/s\n"
    with pytest.raises(TypeError, match="not los"):
        Progress(10, stream=stream).update(1, los=1.0)


def test_plain_lines_come_first_last_and_every_so_many_steps() -> None:
    stream = io.StringIO()
    with Progress(25, every=10, stream=stream) as progress:
        for step in range(4, 26):
            progress.update(step, loss=1.0)
    assert [int(n) for n in re.findall(r"step +(\d+)/", stream.getvalue())] == [4, 10, 20, 25]


def test_other_ranks_are_silent() -> None:
    stream = io.StringIO()
    with Progress(10, rank=1, stream=stream, live=True) as progress:
        progress.note("hello")
        progress.update(10, loss=1.0)
    assert stream.getvalue() == ""


def test_the_estimate_follows_the_pace_of_the_last_steps() -> None:
    clock = Clock()
    progress = Progress(1000, stream=io.StringIO(), clock=clock)
    assert progress.eta(0) is None
    for step in range(1, 201):
        clock.now += 10.0 if step <= 100 else 1.0
        progress.update(step)
    assert progress.eta(200) == pytest.approx(800)
    progress.start(200)
    assert progress.eta(200) is None


TERMINAL = """
import sys
from oarlock.train.progress import Progress
with Progress(40, every=10) as progress:
    assert progress._live is not None
    progress.note("[bold]a note[/bold]")
    for step in range(1, 41):
        progress.update(step, loss=40.0 - step, memory_bytes=2.0**30)
    print("to stdout")
"""


@pytest.mark.timeout(60)
def test_the_live_line_on_a_terminal_and_a_redirected_stdout() -> None:
    pytest.importorskip("rich")
    control, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "PYTHONWARNINGS": "error"}
    process = subprocess.Popen(
        [sys.executable, "-c", TERMINAL], stderr=terminal, stdout=subprocess.PIPE, env=environment, text=True
    )
    out, _ = process.communicate(timeout=50)
    os.close(terminal)
    seen = b""
    try:
        while block := os.read(control, 65536):
            seen += block
    except OSError:  # the other end is closed
        pass
    os.close(control)
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", seen.decode())
    assert process.returncode == 0, shown
    assert out == "to stdout\n"
    assert "[bold]a note[/bold]" in shown
    assert "step    40/40  100.0%  loss 0.000  mem 1.00 GiB" in shown
    assert 2 <= shown.count("step ") < 40  # redrawn at most ten times a second


def test_without_rich_a_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.live", None)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    Progress(10, stream=stream).update(1, loss=2.0)
    assert stream.getvalue() == "step     1/10  10.0%  loss 2.000\n"
    with pytest.raises(ImportError, match="pip install rich"):
        Progress(10, stream=stream, live=True)


def test_all_steps_are_equally_wide() -> None:
    assert len({len(step_text(s, 12345678)) for s in (1, 99_999, 1_234_567)}) == 1
