"""`oarlock paddle`: the table of coverage and the stubs."""

from pathlib import Path

import pytest

from oarlock.cli.main import main
from oarlock.paddle.coverage import STATES, rows


def test_coverage_prints_the_counts_and_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    main(["paddle", "coverage"])
    printed = capsys.readouterr().out
    assert f"{len(rows())} announced functions" in printed
    assert all(state in printed for state in STATES)
    assert all(f"| `{row.name}` |" in printed for row in rows())


def test_stubs_are_written_where_they_are_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["paddle", "stubs", "--to", str(tmp_path)])
    assert "def softmax(" in (tmp_path / "oarlock/paddle/nn/functional/__init__.pyi").read_text(encoding="utf-8")
    assert str(tmp_path) in capsys.readouterr().out


def test_a_program_that_fails_shows_its_own_frames(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text("import paddle\n\ndef inner():\n    return paddle.ones([2]).shape + [1]\n\ninner()\n")
    assert main(["paddle", "run", str(program)]) == 1
    told = capsys.readouterr().err
    assert "line 6, in <module>" in told
    assert "line 4, in inner" in told
    assert "cli/main.py" not in told
    assert f"`oarlock paddle check {program}` lists what differs, --strict runs it" in told
    assert main(["paddle", "run", "--strict", str(program)]) == 0


def test_a_missing_program_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paddle", "run", "none.py"]) == 2
    assert capsys.readouterr().err.splitlines() == ["oarlock paddle: there is no program 'none.py'"]
