"""Programs written for Paddle run here unchanged and give what real Paddle 3.3.1 recorded."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

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


def test_mixture_of_experts(tmp_path: Path) -> None:
    """Forward and backward of a block in plain operations: outputs, losses and every gradient."""
    run("moe_block.py", str(tmp_path))
    found, recorded = np.load(tmp_path / "moe.npz"), np.load(PROGRAMS / "recorded" / "moe.npz")
    assert set(found) == set(recorded)
    for name in recorded:
        np.testing.assert_allclose(found[name], recorded[name], rtol=1e-4, atol=1e-6, err_msg=name)
