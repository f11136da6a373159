"""`oarlock bench NAME`: run a script of a checkout's benchmarks/ and compare its figures with an earlier result."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from oarlock.bench.compare import compare, compare_table, read_figures


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "bench",
        help="run a benchmark and compare it with an earlier one",
        description="Run benchmarks/NAME.py of the checkout that this package or the current folder belongs to.",
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="script without .py; without it, the scripts are listed"
    )
    parser.add_argument("--quick", action="store_true", help="under 50 seconds; slow peers are left out")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures to this file")
    parser.add_argument("--compare", type=Path, metavar="OLD.json", help="show which figures moved since this result")
    parser.add_argument("--threshold", type=float, default=0.05, metavar="SHARE", help="what counts as moved (0.05)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the script; its exit status is ours."""
    scripts = find_scripts()
    if args.name is None:
        print("\n".join(scripts))
        return 0
    if args.name not in scripts:
        raise ValueError(f"no benchmark {args.name!r}; there are: {', '.join(scripts)}")
    if args.json and (args.json.is_dir() or not args.json.absolute().parent.is_dir()):
        raise ValueError(f"--json {args.json}: name a file in a folder that exists")
    # Read first: the new result may go to the same file.
    old = read_figures(args.compare) if args.compare else None
    with tempfile.TemporaryDirectory() as folder:
        result = args.json or Path(folder) / "result.json"
        command = [sys.executable, str(scripts[args.name]), "--json", str(result), *(["--quick"] if args.quick else [])]
        status = subprocess.run(command, check=False).returncode
        if status == 0 and old is not None:
            print(compare_table(compare(old, read_figures(result)), args.threshold))
    return status


def find_scripts() -> dict[str, Path]:
    """The benchmark scripts by name: of the checkout around the current folder, else of this package's checkout.

    Raises:
        FileNotFoundError: neither is a checkout (an installed wheel brings no benchmarks).
    """
    around = [Path.cwd(), *Path.cwd().parents, Path(__file__).resolve().parents[3]]
    for folder in around:
        if (folder / "benchmarks").is_dir() and (folder / "src" / "oarlock").is_dir():
            return {p.stem: p for p in sorted((folder / "benchmarks").glob("*.py")) if not p.stem.startswith("_")}
    raise FileNotFoundError("no benchmarks/ here: run this inside a checkout of the repository")
