"""`oarlock.paddle.check` against a program whose uses of Paddle are known line by line."""

from pathlib import Path

import pytest

from oarlock.paddle.check import ABSENT, Finding, check, files_of, resolve
from oarlock.paddle.conventions import CONFLICTS

PROGRAM = """
import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nothing_here as missing
from os import path

def forward(x):
    names = []
    names.sort()                                    # a list
    parts = "x,y".split(",")                        # a text
    a = x.shape + [1]                               # differs .shape
    b = x.shape == [1, 2]                           # differs .shape
    c = F.softmax(x, axis=-1)                       # runs paddle.nn.functional.softmax
    d = paddle.max(x, axis=1)                       # differs paddle.max
    e = paddle.max(x, dim=1)                        # refused paddle.max
    f = x.max(1)                                    # differs .max
    g = np.max(x, 1) + path.split(x)                # of others
    h = paddle.sum(input=x, dim=1, keepdims=True)   # runs paddle.sum
    i = paddle.no_such.thing(x)                     # absent paddle.no_such.thing
    j = paddle.concat(list(x), axes=1)              # refused paddle.concat
    return x.size                                   # differs .size
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


def test_every_marked_line_and_no_other(program: Path) -> None:
    found = {f.line: f"{f.state} {f.name}" for f in check(program) if f.line > 6}
    marks = {
        number: line.partition("# ")[2]
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if "# " in line and line.partition("# ")[2].split()[0] in ("runs", "differs", "refused", "absent")
    }
    assert found == marks


def test_imports_are_judged(program: Path) -> None:
    states = {f.name: f.state for f in check(program) if f.line < 7}
    assert states == {"paddle": "runs", "paddle.nn.functional": "runs", "paddle.nothing_here": "absent"}


def test_advice_names_the_other_spelling(program: Path) -> None:
    text = {f.line: str(f) for f in check(program)}
    assert "paddle.compat.max" in text[16]
    assert text[20].endswith("absent: paddle.no_such.thing: paddle has no no_such")


def test_conflicts_exist_here() -> None:
    functions = [name for name in CONFLICTS if name.rpartition(".")[2].islower()]
    assert functions
    assert [name for name in functions if resolve(name) is ABSENT] == []


def test_folders_are_searched_and_missing_paths_named(program: Path) -> None:
    assert list(files_of([program.parent])) == [program]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        list(files_of([Path("nowhere")]))


def test_a_finding_is_a_line_an_editor_can_follow(program: Path) -> None:
    assert str(Finding(program, 3, 1, "paddle.sum", "runs", "")) == f"{program}:3:1: runs: paddle.sum"


def test_a_file_is_read_in_the_encoding_that_it_names(tmp_path: Path) -> None:
    path = tmp_path / "latin.py"
    text = "import paddle\nname = 'é'; paddle.abs(name)\n"
    path.write_bytes(b"# -*- coding: latin-1 -*-\n" + text.encode("latin-1"))
    assert [(found.line, found.name, found.state) for found in check(path)] == [
        (2, "paddle", "runs"),
        (3, "paddle.abs", "runs"),
    ]
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(SyntaxError, match="utf-8"):
        check(path)
