"""Recordings: their file, what they refuse, and the stacks they refer to."""

import traceback
from pathlib import Path

import numpy as np
import pytest

from oarlock.memory.events import BLOCK, EVENT, Action, Recording
from oarlock.stacks import Frame, StackTable


def example() -> Recording:
    events = np.zeros(3, EVENT)
    events["t_ns"], events["addr"], events["size"] = [5, 6, 9], 1 << 40, 1 << 20
    events["action"] = [Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED]
    events["stack"][0], events["name"][0] = 1, 1
    blocks = np.zeros(1, BLOCK)
    frames = [Frame("train.py", 3, "step"), Frame("main.py", 9, "main")]
    return Recording(events, blocks, frames, [(), (0, 1)], ["", "été"], tags={2: "parameter"}, settings={"a": [1]})


def test_an_event_is_forty_bytes() -> None:
    assert EVENT.itemsize == 40


def test_a_recording_comes_back_from_its_file(tmp_path: Path) -> None:
    before = example()
    after = Recording.load(before.save(tmp_path / "made" / "step.npz"))
    assert np.array_equal(after.events, before.events)
    assert np.array_equal(after.blocks, before.blocks)
    assert after.stack(1) == [Frame("train.py", 3, "step"), Frame("main.py", 9, "main")]
    assert (list(after.names), dict(after.tags), dict(after.settings)) == (["", "été"], {2: "parameter"}, {"a": [1]})
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["step.npz"]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04]."])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a recording of memory"):
        Recording.load(path)


def test_numbers_that_name_nothing_are_refused() -> None:
    events = np.zeros(1, EVENT)
    events["stack"] = 1
    with pytest.raises(ValueError, match="events refer to stack 1, there are 1"):
        Recording(events, np.zeros(0, BLOCK))


def test_a_stack_is_what_traceback_says_and_is_kept_once() -> None:
    table = StackTable()

    def take() -> tuple[int, traceback.StackSummary]:
        return table.capture(), traceback.extract_stack()

    taken = [take() for _ in range(3)]
    number, summary = taken[0]
    assert len({number for number, _ in taken}) == 1
    assert len(table) == 2
    frames = table.frames(number)
    assert [frame.filename for frame in frames] == [level.filename for level in reversed(summary)][: len(frames)]
    assert [frame.line for frame in frames] == [level.lineno for level in reversed(summary)][: len(frames)]
    assert frames[0].name.endswith("take")
    assert table.frames(0) == ()
    other, _ = take()  # another line
    assert other != number
