"""`oarlock memory view FILE`: a recording of memory, or a snapshot of CUDA's, as one HTML page."""

import argparse
from pathlib import Path


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser("memory", help="look at a recording or snapshot of memory")
    commands = parser.add_subparsers(dest="memory_command", metavar="COMMAND", required=True)
    view = commands.add_parser(
        "view",
        help="write an HTML page about it",
        description="Show FILE as one HTML page that needs no network: addresses over time, the blocks at a moment, "
        "stacks and fragmentation. FILE is a recording of Oarlock (.npz) or a snapshot of torch.cuda.memory (.pickle).",
    )
    view.add_argument("file", type=Path, metavar="FILE")
    view.add_argument("--out", type=Path, metavar="PATH", help="the page; FILE with .html by default")
    view.set_defaults(run=run_view)


def run_view(args: argparse.Namespace) -> int:
    """Write the page and say where."""
    from oarlock.memory import Recording, write

    target = args.out or args.file.with_suffix(".html")
    print(write(Recording.load(args.file), target))
    return 0
