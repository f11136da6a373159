"""`oarlock train CONFIG.toml [--section.key value ...]`: train, evaluate, export, and continue a prompt."""

import argparse
import io
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, TextIO

from oarlock.cli.main import read_or_not


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
    from oarlock.train.config import load_config, print_options

    config = load_config(args.config, args.overrides)
    if args.options:
        print_options(config)
        return 0

    from oarlock.parallel import initialize
    from oarlock.train.loop import train
    from oarlock.train.run import RunDirectory

    directory = RunDirectory(config.train.out)
    device = config.train.device.partition(":")[0]
    with initialize(device, timeout_seconds=config.parallel.timeout_seconds, data=config.parallel.data) as mesh:
        is_first = mesh.rank("data") == 0
        if args.resume == "auto" and directory.finished(config):
            if is_first:
                print(f"{directory.path} has finished; nothing is left to train", file=sys.stderr)
        else:
            if is_first:
                with read_or_not():
                    print(config.to_toml(), flush=True)
            if train(config, resume=args.resume, mesh=mesh).stopped_by:
                return 0
        if is_first:
            if config.train.sample:
                _sample(directory.path, config.train.sample, config.train.device)
            print(f"\nreport    {directory.report}\nweights   {directory.export}", file=sys.stderr)
            print(f'continue  oarlock generate {directory.path} "your prompt"', file=sys.stderr)
    return 0


def _sample(run_directory: Path, prompt: str, device: str) -> None:
    """Continue a prompt with the finished model, on stdout and in the report."""
    from oarlock.cli import generate
    from oarlock.train.metrics import MetricsLog, read_metrics
    from oarlock.train.report import write_report

    parser = argparse.ArgumentParser()
    generate.add_parser(parser.add_subparsers())
    options = ["--max-new-tokens", "160", "--temperature", "0.8"]
    options += [] if device == "auto" else ["--device", device]
    heard = _Tee(sys.stdout)
    try:
        with redirect_stdout(heard), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a short context shortens the sample: nobody asked for 160
            generate.continue_prompts(parser.parse_args(["generate", str(run_directory), *options]), [prompt])
    except ValueError as error:  # the run itself has succeeded
        print(f"oarlock train: no sample: {error}", file=sys.stderr)
        return
    records = read_metrics(run_directory)
    samples = [record["text"] for record in records if record.get("event") == "sample"]
    if samples[-1:] != [heard.getvalue()]:
        last_step = max(record["step"] for record in records)
        with MetricsLog(run_directory, tensorboard=False) as log:
            log.resume(last_step)
            log.write("event", last_step, event="sample", prompt="", text=heard.getvalue())
        write_report(run_directory)


class _Tee(io.StringIO):
    """Remembers what passes through to another stream."""

    def __init__(self, onward: TextIO) -> None:
        super().__init__()
        self._onward = onward

    def write(self, text: str, /) -> int:
        with read_or_not():
            self._onward.write(text)
        return super().write(text)

    def flush(self, *_: Any) -> None:
        with read_or_not():
            self._onward.flush()
