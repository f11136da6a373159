"""scripts/setup in a fresh copy of the checkout, below a path with a space, inside somebody's active environment."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def copy_checkout(target: Path) -> None:
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


@pytest.mark.network
@pytest.mark.timeout(1200)
def test_setup_of_a_fresh_checkout(tmp_path: Path) -> None:
    checkout, active, home = tmp_path / "a checkout", tmp_path / "active", tmp_path / "home"
    copy_checkout(checkout)
    home.mkdir()
    venv.create(active)
    before = sorted(active.rglob("*"))
    environment = os.environ | {
        "HOME": str(home),
        "VIRTUAL_ENV": str(active),
        "PATH": f"{active / 'bin'}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT / "src"),
    }

    def call(*command: str, timeout: float = 1100) -> str:
        done = subprocess.run(
            command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    said = call("scripts/setup", "run")
    for phase in ("creating .venv", "installing torch==", "installing torch, ", "building the C++ core", "done"):
        assert f"s] {phase}" in said
    assert call("scripts/setup", "run", timeout=10) == ""  # the stamp
    del environment["PYTHONPATH"]
    doctor = call(".venv/bin/oarlock", "doctor")
    assert str(checkout) in doctor
    assert "everything needed works" in doctor
    assert sorted(active.rglob("*")) == before
