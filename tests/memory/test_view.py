"""The page of a recording: bounded however long it is, true to it, and no text of it is more than text."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oarlock.memory.amounts import amount
from oarlock.memory.events import BLOCK, EVENT, Action, Mark, Recording
from oarlock.memory.intervals import intervals
from oarlock.memory.view import write_page
from oarlock.stacks import Frame


def churn(num_pairs: int, seed: int = 0) -> Recording:
    """Allocations that live for random times, two freed in a backward pass; regions, a name, a failure."""
    choose = np.random.default_rng(seed)
    begin = choose.integers(0, num_pairs, num_pairs)
    times = np.concatenate([begin, begin + 1 + choose.geometric(0.01, num_pairs)])
    order = np.argsort(times, kind="stable")
    events = np.zeros(2 * num_pairs + 4, EVENT)
    sizes = np.exp(choose.normal(12, 2, num_pairs)).astype(np.int64) + 1
    row = order % num_pairs
    inner = events[2:-2]
    inner["addr"], inner["size"] = (1 << 44) + row * (1 << 24), sizes[row]
    inner["action"] = np.where(order < num_pairs, Action.ALLOC, Action.FREE_COMPLETED)
    inner["stack"], inner["name"] = row % 3, row % 5
    inner["detail"] = (order >= num_pairs) & (row % 2 == 0)
    for at, detail in ((0, Mark.BEGIN), (-1, Mark.END)):
        events[at]["action"], events[at]["detail"], events[at]["name"] = Action.ANNOTATION, detail, 5
    events[1]["action"], events[1]["size"] = Action.OOM, 1 << 40
    events[-2]["action"], events[-2]["name"] = Action.ANNOTATION, 1
    events["t_ns"] = np.arange(events.size) * 1000
    frames = [Frame("/home/me/model.py", 3, "forward"), Frame("/site/torch/nn/linear.py", 9, "</script><b>")]
    names = ["", "mm", "add", "</script><script>alert(1)</script>", "\ud800", "a region"]
    return Recording(events, np.zeros(0, BLOCK), frames, [(), (0,), (1, 0)], names)


def data_of(page: Path) -> dict[str, Any]:
    (text,) = re.findall(r'id="data-1">(.*?)</script>', page.read_text(encoding="utf-8"), re.S)
    return json.loads(text)


@pytest.mark.parametrize("num_pairs", [1, 1000, 100_000])
def test_the_page_is_bounded_and_shows_most(tmp_path: Path, num_pairs: int) -> None:
    recording = churn(num_pairs)
    page = write_page(recording, tmp_path / "page.html")
    data = data_of(page)
    own = len(data["rects"]["y"])
    assert own + len(data["cells"]) + len(data["mapped"]["y"]) <= 20_000
    assert own + data["numOthers"] == num_pairs
    assert page.stat().st_size < 3_000_000
    # The rectangles show most of what was taken, and with the grid's cells no more than that; faint cells are left out.
    lives = intervals(recording)
    whole = float(((lives.end - np.maximum(lives.begin, 0)) * lives.size).sum())
    rects = np.array([data["rects"][name] for name in ("i0", "i1", "h")], float)
    drawn = float(((rects[1] - rects[0]) * rects[2]).sum())
    widths = np.diff(data["columns"])
    cells = sum(level / 255 * widths[column] * data["total"] / 50 for column, _, level in data["cells"])
    assert 0.8 * whole < drawn <= whole
    assert drawn + cells < 1.02 * whole
    assert max(data["curve"]["live"]) == lives.live_bytes().max()
    assert {tuple(span[4:]) for span in data["spans"]} == {("a region", 0), ("", 0), ("mm", 0)}
    assert {name for name, _ in data["kinds"]} <= {"activation", "temporary"}


def test_texts_stay_texts_and_nothing_is_loaded(tmp_path: Path) -> None:
    page = write_page(churn(100), tmp_path / "page.html", title="<i>run</i>").read_text(encoding="utf-8")
    assert "<i>run" not in page
    assert len(re.findall(r"<script", page)) == 2  # data and program
    assert "alert(1)</script>" not in page
    assert not re.search(r"(src|href)=", page)
    assert "http:" not in re.sub(r'xmlns="[^"]*"', "", page)
    assert "https:" not in page
    assert "model.py:3 forward" in page
    assert "script-src 'sha256-" in page


def test_an_empty_recording_has_a_page(tmp_path: Path) -> None:
    page = write_page(Recording(np.zeros(0, EVENT), np.zeros(0, BLOCK)), tmp_path / "page.html")
    assert data_of(page)["numEvents"] == 0


def test_amounts_have_three_digits() -> None:
    values = (0, 1023, 1536, 10 << 20, 999 << 30, -(5 << 40), 1024)
    assert [amount(value) for value in values] == [
        *("0 B", "1023 B", "1.50 KiB", "10.0 MiB", "999 GiB", "-5.00 TiB", "1.00 KiB"),
    ]
    assert amount(2048, sign=True) == "+2.00 KiB"
