"""A Paddle program here, on real Paddle, and by hand on torch: python benchmarks/paddle_program.py --paddle PYTHON

    python -m venv /tmp/venv && /tmp/venv/bin/pip install paddlepaddle==3.3.1     # then --paddle /tmp/venv/bin/python

Trains tests/paddle/programs/decoder.py on one thread in each world, process after process, several rounds; a figure is
the ratio of the smallest medians of a step's seconds. The floor is the torch twin (benchmarks/_decoder_twin.py): the
same operations without any of Paddle's names between. The losses of all three are compared as well.

    step_vs_paddle   a step here / a step of real Paddle        target <= 1.0
    step_vs_torch    a step here / a step of the torch twin     target <= 1.1
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

_ROOT = Path(__file__).resolve().parents[1]
_PROGRAM = _ROOT / "tests" / "paddle" / "programs" / "decoder.py"
_RECORDED = _PROGRAM.parent / "recorded" / "losses.json"


def main() -> None:
    """Run the contestants in turn and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paddle", metavar="PYTHON", help="a Python with paddlepaddle==3.3.1; left out without it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--json", type=Path, metavar="PATH")
    args = parser.parse_args()

    commands = {
        "here": [sys.executable, "-m", "oarlock", "paddle", "run", str(_PROGRAM)],
        "torch": [sys.executable, str(_ROOT / "benchmarks" / "_decoder_twin.py")],
    }
    if args.paddle:
        commands["paddle"] = [args.paddle, str(_PROGRAM)]
    medians: dict[str, list[float]] = {name: [] for name in commands}
    losses: dict[str, list[float]] = {}
    for _ in range(args.rounds):
        for name, command in commands.items():
            seconds, losses[name] = run(command, args.steps)
            medians[name].append(seconds)
    best = {name: min(values) for name, values in medians.items()}
    figures = {"step_vs_torch": best["here"] / best["torch"]}
    if args.paddle:
        figures["step_vs_paddle"] = best["here"] / best["paddle"]
    if args.steps == 50:
        losses["recorded"] = json.loads(_RECORDED.read_text(encoding="utf-8"))["losses"]

    print(f"torch {torch.__version__}, one thread, {args.rounds} rounds of {args.steps} steps")
    for name, seconds in sorted(best.items(), key=lambda item: item[1]):
        apart = max(abs(a - b) for a, b in zip(losses[name], losses["torch"], strict=True))
        print(f"{name:>8} {1e3 * seconds:8.2f} ms a step   losses apart from torch's {apart:.1e}")
    for name, value in figures.items():
        print(f"{name:>15} {value:6.2f}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2), encoding="utf-8")


def run(command: list[str], steps: int) -> tuple[float, list[float]]:
    """The median seconds of a step, without the first five, and the losses."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "GLOG_v": "0"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, folder, str(steps)], env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        found = json.loads((Path(folder) / "losses.json").read_text(encoding="utf-8"))
    return statistics.median(found["seconds"][5:]), found["losses"]


if __name__ == "__main__":
    main()
