"""`oarlock <command>`: dispatch only. Every command lives in a module of its own with `add_parser` and `run`."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from oarlock import __version__

COMMANDS = {
    "train": "train a language model from a TOML file",
    "generate": "continue prompts with a trained run or a Hugging Face folder",
    "data": "tokenise a corpus once, into a cache the trainer reads",
    "plan": "parameters, FLOPs and memory of a configuration, without allocating",
    "bench": "run a benchmark and compare it with an earlier one",
    "doctor": "what this installation can do, and why not",
}


def entry() -> None:
    """Console entry point: exits with the command's status."""
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run one command line. User errors end as one line on stderr and status 2.

    Set `OARLOCK_TRACEBACK=1` to see the full traceback instead.
    """
    # An OpenMP team that waits busily costs 10x when cores are shared, one that sleeps at once 7 % of a training step:
    # wait for about 0.1 ms. Must be set before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    parser = argparse.ArgumentParser(prog="oarlock", description="Train large models, take them to inference.")
    parser.add_argument("--version", action="version", version=f"oarlock {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    command = next((word for word in arguments if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        if name == command:  # importing only what runs keeps `oarlock --help` instant
            importlib.import_module(f"oarlock.cli.{name}").add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary)
    parsed, rest = parser.parse_known_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return 0
    accepts_overrides = getattr(parsed, "accepts_overrides", False)
    if rest and not accepts_overrides:
        parser.error(f"unrecognised arguments: {' '.join(rest)}")
    if accepts_overrides:
        parsed.overrides = rest
    try:
        return parsed.run(parsed)
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        if os.environ.get("OARLOCK_TRACEBACK"):
            raise
        print(f"oarlock {parsed.command}: {error}", file=sys.stderr)
        if type(error) is RuntimeError:  # not one of ours: where it came from may matter
            print("OARLOCK_TRACEBACK=1 shows the full traceback", file=sys.stderr)
        return 2
