"""Programs written for Paddle run here unchanged and give what real Paddle 3.3.1 recorded."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PROGRAMS = Path(__file__).parent / "programs"


def run(program: str, *arguments: str, options: tuple[str, ...] = ()) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "oarlock", "paddle", "run", *options, str(PROGRAMS / program), *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_decoder_training(tmp_path: Path) -> None:
    """Fifty steps with a custom backward, a schedule, clipping and a restart from files in the middle."""
    assert run("decoder.py", str(tmp_path)).startswith("oarlock.paddle: loss 4.26")
    found: dict[str, Any] = json.loads((tmp_path / "losses.json").read_text())
    recorded = json.loads((PROGRAMS / "recorded" / "losses.json").read_text())
    assert len(found["losses"]) == 50
    # The same float32 operations in another order of summation: 5e-7 measured.
    np.testing.assert_allclose(found["losses"], recorded["losses"], atol=1e-5, rtol=0)
    assert found["guess"] == recorded["guess"]


@pytest.mark.parametrize("probes", ["autograd_probes", "data_probes", "layer_probes", "metric_probes", "state_probes"])
def test_probes(probes: str, tmp_path: Path) -> None:
    """Each of the small programs gives what it gave under Paddle."""
    run(f"{probes}.py", str(tmp_path))
    found = json.loads((tmp_path / f"{probes}.json").read_text())
    recorded = json.loads((PROGRAMS / "recorded" / f"{probes}.json").read_text())
    assert found == {name: near(value) for name, value in recorded.items()}


def test_a_program_that_starts_two_processes(tmp_path: Path) -> None:
    run("two_processes.py", str(tmp_path))
    found = json.loads((tmp_path / "two_processes.json").read_text())
    assert found == near(json.loads((PROGRAMS / "recorded" / "two_processes.json").read_text()))


def near(value: Any) -> Any:
    """The value, that equals others whose fractions differ by float32's rounding."""
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-5, abs=1e-6, nan_ok=True)
    if isinstance(value, dict):
        return {key: near(each) for key, each in value.items()}
    return list(map(near, value)) if isinstance(value, list) else value


def test_mixture_of_experts(tmp_path: Path) -> None:
    """Forward and backward of a block in plain operations: outputs, losses and every gradient."""
    run("moe_block.py", str(tmp_path))
    found, recorded = np.load(tmp_path / "moe.npz"), np.load(PROGRAMS / "recorded" / "moe.npz")
    assert set(found) == set(recorded)
    for name in recorded:
        np.testing.assert_allclose(found[name], recorded[name], rtol=1e-4, atol=1e-6, err_msg=name)
