"""`oarlock paddle`: what of Paddle's API exists on torch, and how it was checked."""

import argparse
from pathlib import Path


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser("paddle", help="what of Paddle's API exists on torch", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    coverage = actions.add_parser("coverage", help="every announced function and how it was checked, as Markdown")
    coverage.set_defaults(run=run_coverage)
    stubs = actions.add_parser("stubs", help="write type stubs for editors and type checkers")
    stubs.add_argument("--to", type=Path, metavar="FOLDER", help="elsewhere than beside the package")
    stubs.set_defaults(run=run_stubs)


def run_coverage(parsed: argparse.Namespace) -> int:
    """Print the table."""
    from oarlock.paddle.coverage import rows, table

    print(table(rows()))
    return 0


def run_stubs(parsed: argparse.Namespace) -> int:
    """Write the stubs and print their paths."""
    from oarlock.paddle.stubs import write_stubs

    for path in write_stubs(parsed.to):
        print(path)
    return 0
