"""`oarlock paddle`: Paddle programs on torch, what a program needs of Paddle's API, and what there is of it."""

import argparse
import sys
import traceback
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
    program = actions.add_parser(
        "run",
        help="run a Paddle program",
        description="Run SCRIPT as python would, with `import paddle` resolved here, in this process and its children.",
    )
    program.add_argument("--strict", action="store_true", help="Paddle's conventions where torch's conflict with them")
    program.add_argument("script", metavar="SCRIPT")
    program.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="of the program")
    program.set_defaults(run=run_script)
    check = actions.add_parser(
        "check",
        help="what a Paddle program needs",
        description="List, by line, the uses of Paddle that differ in convention, are refused or absent. The status is "
        "1 if there are refused or absent ones.",
    )
    check.add_argument("paths", nargs="+", type=Path, metavar="FILE", help="Python files, or folders of them")
    check.add_argument("--all", action="store_true", help="also those that run as they are")
    check.set_defaults(run=run_check)


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


def run_script(parsed: argparse.Namespace) -> int:
    """Run the program; an exception that ends it is shown from the program's own frames on."""
    from oarlock.paddle.program import run_program

    try:
        run_program(parsed.script, parsed.arguments, strict=parsed.strict)
    except Exception as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != parsed.script:
            frames = frames.tb_next
        if frames is None:  # the program did not begin
            raise
        traceback.print_exception(type(error), error, frames)
        strictly = "" if parsed.strict else ", --strict runs it with Paddle's own conventions"
        print(f"oarlock paddle: `oarlock paddle check {parsed.script}` lists what differs{strictly}", file=sys.stderr)
        return 1
    return 0


def run_check(parsed: argparse.Namespace) -> int:
    """Print the findings and how many there are of each state."""
    import oarlock.paddle  # noqa: F401 - declares what there is
    from oarlock.paddle.check import STATES, check, files_of

    counts = dict.fromkeys(STATES, 0)
    for path in files_of(parsed.paths):
        for finding in check(path):
            counts[finding.state] += 1
            if parsed.all or finding.state != "runs":
                print(finding)
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    return int(counts["refused"] + counts["absent"] > 0)
