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
