"""`oarlock bench` runs the script of the checkout around it and shows what moved."""

import json
from pathlib import Path

import pytest

from oarlock.cli.main import main

SCRIPT = """
import argparse, json, sys
parser = argparse.ArgumentParser()
parser.add_argument("--json")
parser.add_argument("--quick", action="store_true")
args = parser.parse_args()
if args.json:
    open(args.json, "w").write(json.dumps([{"figure": "speed", "value": 1.0 if args.quick else 2.0, "detail": ""}]))
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "src" / "oarlock").mkdir(parents=True)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "small.py").write_text(SCRIPT)
    (tmp_path / "benchmarks" / "broken.py").write_text("raise SystemExit(3)")
    (tmp_path / "benchmarks" / "_shared.py").write_text("")
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    return tmp_path


def test_it_lists_runs_and_compares(checkout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 0
    assert capfd.readouterr().out.split() == ["broken", "small"]
    assert main(["bench", "small", "--json", "r.json"]) == 0
    assert json.loads(Path("r.json").read_text())[0]["value"] == 2.0
    # the old result is read before the same file is written
    assert main(["bench", "small", "--quick", "--json", "r.json", "--compare", "r.json"]) == 0
    assert "* speed     2    1    0.500" in capfd.readouterr().out
    assert json.loads(Path("r.json").read_text())[0]["value"] == 1.0


def test_failures_are_named(checkout: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["bench", "smal"]) == 2
    assert capfd.readouterr().err == "oarlock bench: no benchmark 'smal'; there are: broken, small\n"
    assert main(["bench", "broken"]) == 3
    assert main(["bench", "small", "--compare", "none.json"]) == 2
    assert main(["bench", "broken", "--json", "."]) == 2  # before anything runs
    assert main(["bench", "broken", "--json", "nowhere/r.json"]) == 2
    assert "no benchmark result none.json" in capfd.readouterr().err
