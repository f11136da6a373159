"""A Paddle program here, on real Paddle, and by hand on torch.

    python benchmarks/paddle_program.py --paddle PYTHON [--quick] [--json PATH]

    python -m venv /tmp/venv && /tmp/venv/bin/pip install paddlepaddle==3.3.1     # then --paddle /tmp/venv/bin/python

Trains tests/paddle/programs/decoder.py on one thread in each world, process after process, several rounds; a figure is
the ratio of the smallest medians of a step's seconds. The floor is the torch twin (benchmarks/_decoder_twin.py): the
same operations without any of Paddle's names between. The losses of all three are compared as well.

    step_vs_paddle   a step here / a step of real Paddle        target <= 1.0
    step_vs_torch    a step here / a step of the torch twin     target <= 1.1
    decoder_names    how many are here of the 67 names and 42 tensor attributes that seven decoders use
                     (listed in tests/paddle/test_decoder_names.py)                     target 109
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
    parser.add_argument("--quick", action="store_true", help="two rounds: under 50 s")
    parser.add_argument("--rounds", type=int, help="5 by default")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the rows there")
    args = parser.parse_args()
    rounds = args.rounds or (2 if args.quick else 5)

    commands = {
        "here": [sys.executable, "-m", "oarlock", "paddle", "run", str(_PROGRAM)],
        "torch": [sys.executable, str(_ROOT / "benchmarks" / "_decoder_twin.py")],
    }
    if args.paddle:
        commands["paddle"] = [args.paddle, str(_PROGRAM)]
    medians: dict[str, list[float]] = {name: [] for name in commands}
    losses: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, command in commands.items():
            seconds, losses[name] = run(command, args.steps)
            medians[name].append(seconds)
    best = {name: min(values) for name, values in medians.items()}
    figures: dict[str, tuple[float, str]] = {}
    for name in ("torch", *(["paddle"] if args.paddle else [])):
        detail = f"{1e3 * best['here']:.2f} ms / {1e3 * best[name]:.2f} ms, the least of {rounds} medians"
        figures[f"step_vs_{name}"] = best["here"] / best[name], detail
    present, listed = decoder_names()
    figures["decoder_names"] = present, f"of {listed}"
    if args.steps == 50:
        losses["recorded"] = json.loads(_RECORDED.read_text(encoding="utf-8"))["losses"]

    print(f"torch {torch.__version__}, one thread, {rounds} rounds of {args.steps} steps")
    for name, seconds in sorted(best.items(), key=lambda item: item[1]):
        apart = max(abs(a - b) for a, b in zip(losses[name], losses["torch"], strict=True))
        print(f"{name:>8} {1e3 * seconds:8.2f} ms a step   losses apart from torch's {apart:.1e}")
    for name, (value, detail) in figures.items():
        print(f"{name:>15} {value:6.2f}  {detail}")
    if args.json:
        rows = [{"figure": name, "value": value, "detail": detail} for name, (value, detail) in figures.items()]
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def decoder_names() -> tuple[int, int]:
    """(names and attributes that are here, those listed)."""
    sys.path.insert(0, str(_ROOT / "tests" / "paddle"))
    from test_decoder_names import ATTRIBUTES, NAMES

    import oarlock.paddle as paddle
    from oarlock.paddle.check import ABSENT, resolve

    paddle.patch_tensor()
    x = torch.ones(1)
    present = [name for name in NAMES if resolve(f"paddle.{name}") is not ABSENT]
    present += [name for name in ATTRIBUTES if hasattr(x, name)]
    return len(present), len(NAMES) + len(ATTRIBUTES)


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
