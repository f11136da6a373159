"""`oarlock compile explain`: where torch.compile cannot follow the model of a configuration; status 1 if too often."""

import argparse
import sys


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "compile",
        help="where torch.compile cannot follow a model",
        description="Trace a training step of the model that a configuration describes, and list graph breaks.",
        epilog="Further words are overrides of the configuration, such as --model.family qwen3_moe.",
    )
    parser.add_argument(
        "what", choices=["explain"], help="explain: a table of graph breaks, file:line, and operations lost"
    )
    parser.add_argument("config", help="TOML file of a training run")
    parser.add_argument("--max-breaks", type=int, default=None, metavar="N", help="status 1 if there are more (for CI)")
    parser.set_defaults(run=run, accepts_overrides=True)


def run(parsed: argparse.Namespace) -> int:
    """Print the table; 1 if there are more breaks than allowed."""
    from oarlock.cli.plan import planned_vocab_size
    from oarlock.compile import TooManyBreaks
    from oarlock.train.build import build_model, choose_device, decoder_config
    from oarlock.train.compiled import explain_step
    from oarlock.train.config import load_config

    config = load_config(parsed.config, parsed.overrides)
    architecture = decoder_config(config.model, planned_vocab_size(config), config.data.sequence_length)
    report = explain_step(build_model(config, architecture, choose_device(config.train.device)), config)
    print(report)
    if parsed.max_breaks is not None:
        try:
            report.check(parsed.max_breaks)
        except TooManyBreaks as error:
            print(f"oarlock compile: {str(error).splitlines()[0]}", file=sys.stderr)
            return 1
    return 0
