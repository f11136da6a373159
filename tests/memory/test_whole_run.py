"""A whole training run inside the pool: all of torch's CPU tensors, under a cap 3 % above what is live at most."""

import json
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def run(shim: Path, *arguments: object) -> dict:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(FOLDER / "whole_run.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "OARLOCK_SHIM": str(shim), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_capped_run_ends_with_the_same_parameters_to_the_bit(shim: Path) -> None:
    uncapped = run(shim, "pool", 4 << 30)
    assert uncapped["parameters_in_pool"] == 8
    assert uncapped["moved_pages"] == 0
    cap = int(uncapped["peak"] * 1.03)
    capped = run(shim, "pool", cap)
    assert "error" not in capped
    assert capped["digests"] == uncapped["digests"]
    assert capped["loss"] == uncapped["loss"]
    assert capped["reserved"] <= cap
    assert capped["moved_pages"] > 0
    # What cannot move pages fragments and fails under the same cap.
    assert "out of memory" in run(shim, "fixed", cap)["error"]


def test_a_cap_below_what_is_live_is_an_error_that_says_why(shim: Path) -> None:
    error = run(shim, "pool", 16 << 20)["error"]
    assert "requested of a pool of 16.00 MiB" in error
    assert "What would have helped" in error
