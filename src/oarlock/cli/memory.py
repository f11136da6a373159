"""`oarlock memory view FILE`: a recording of memory, or a snapshot of CUDA's, as one HTML page or another form."""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oarlock.memory import Recording


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser("memory", help="look at a recording or snapshot of memory")
    commands = parser.add_subparsers(dest="memory_command", metavar="COMMAND", required=True)
    for name, run, summary in (
        ("view", run_view, "write an HTML page about it"),
        ("summary", run_summary, "print tables about it"),
    ):
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}. FILE is a recording of Oarlock (.npz) or a snapshot of "
            "torch.cuda.memory (.pickle); nothing in it is run, and only plain containers are read.",
        )
        command.add_argument("file", type=Path, metavar="FILE")
        command.add_argument("--device", type=int, metavar="N", help="of a snapshot; by default the busiest")
        command.add_argument(
            "--from", type=float, default=0.0, metavar="SECONDS", dest="start", help="leave out what came before"
        )
        command.add_argument(
            "--to", type=float, default=math.inf, metavar="SECONDS", dest="stop", help="leave out what came after"
        )
        if name == "view":
            command.add_argument(
                "--out",
                type=Path,
                metavar="PATH",
                help="FILE with .html by default; .json for Perfetto, .pickle for torch's viewers, .npz a recording",
            )
        command.set_defaults(run=run)


def run_view(args: argparse.Namespace) -> int:
    """Write the page and say where."""
    from oarlock.memory import write

    target = args.out or args.file.with_suffix(".html")
    if target.exists() and target.samefile(args.file):
        raise ValueError(f"{target} would be written over itself; name another file with --out")
    print(write(_read(args), target))
    return 0


def run_summary(args: argparse.Namespace) -> int:
    """Print the tables."""
    from oarlock.memory import memory_summary

    print(memory_summary(_read(args)))
    return 0


def _read(args: argparse.Namespace) -> "Recording":
    from oarlock.memory import Recording, read_torch_snapshot, window

    with open(args.file, "rb") as file:
        is_zip = file.read(2) == b"PK"
    recording = Recording.load(args.file) if is_zip else read_torch_snapshot(args.file, device=args.device)
    if (args.start, args.stop) != (0.0, math.inf):
        recording = window(recording, args.start, args.stop)
    return recording
