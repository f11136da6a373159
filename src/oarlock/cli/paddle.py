"""`oarlock paddle coverage`: which of Paddle's announced functions exist here, and how each was checked."""

import argparse
from pathlib import Path


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser("paddle", help="what of Paddle's API exists on torch", description=__doc__)
    parser.add_argument("what", choices=["coverage"], help="coverage: a Markdown table, one line per announced API")
    parser.add_argument("--golden", type=Path, help="recorded answers (tests/paddle/golden of a checkout)")
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Print the table."""
    from oarlock.paddle.coverage import rows, table

    print(table(rows(parsed.golden)))
    return 0
