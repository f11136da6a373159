"""`oarlock train CONFIG.toml [--section.key value ...]`: train, evaluate, export, and continue a prompt."""

import argparse
import sys
from pathlib import Path


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "train",
        help="train a language model from a TOML file",
        description="Train the model that CONFIG.toml describes. Any of its keys can be given as --section.key value; "
        "`oarlock train CONFIG.toml --options` lists them all.",
    )
    parser.add_argument("config", type=Path, help="TOML file, for example configs/shakespeare.toml")
    parser.add_argument(
        "--resume",
        default="never",
        metavar="auto|never|PATH",
        help="auto: continue from the newest checkpoint of the run, or start; PATH: from that checkpoint",
    )
    parser.add_argument("--options", action="store_true", help="list every --section.key with its default, and leave")
    parser.set_defaults(run=run, accepts_overrides=True)


def run(args: argparse.Namespace) -> int:
    """Train as configured; on the first rank, print the resolved configuration before and a sample after."""
    from oarlock.train.config import load_config

    config = load_config(args.config, ["--help"] if args.options else args.overrides)

    from oarlock.parallel import initialize
    from oarlock.train.loop import train
    from oarlock.train.run import RunDirectory

    directory = RunDirectory(config.train.out)
    with initialize(timeout_seconds=config.parallel.timeout_seconds) as mesh:
        if args.resume == "auto" and directory.finished():
            print(f"{directory.path} has finished; its report is {directory.report}", file=sys.stderr)
        else:
            if mesh.rank("data") == 0:
                print(config.to_toml(), flush=True)
            result = train(config, resume=args.resume, mesh=mesh)
            if result.stopped_by:
                return 0
        if mesh.rank("data") == 0:
            print(f"report    {directory.report}\nweights   {directory.export}", file=sys.stderr)
            if config.train.sample:
                _print_sample(directory, config.train.sample)
    return 0


def _print_sample(directory: "RunDirectory", prompt: str) -> None:  # noqa: F821 - imported when needed
    from oarlock.cli.main import main

    main(["generate", str(directory.path), prompt, "--max-new-tokens", "150", "--temperature", "0.8", "--seed", "0"])
