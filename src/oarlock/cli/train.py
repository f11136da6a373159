"""`oarlock train CONFIG.toml [--section.key value ...]`: train, evaluate, export, and continue a prompt."""

import argparse
import io
import shlex
import shutil
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from oarlock.cli.main import read_or_not

if TYPE_CHECKING:
    from oarlock.train.data import PreparedData

_OPENING_WORDS, _OPENING_TOKENS = 6, 32


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
        "--task",
        metavar="pretrain|sft|dpo",
        help="what is learned, the same as --train.task: documents, conversations or preferences",
    )
    parser.add_argument(
        "--resume",
        default="never",
        metavar="auto|never|PATH",
        help="auto: continue from the newest checkpoint of the run, or start; PATH: from that checkpoint",
    )
    parser.add_argument("--options", action="store_true", help="list every --section.key with its default, and leave")
    parser.set_defaults(run=run, accepts_overrides=True)


def run(args: argparse.Namespace) -> int:
    """Train as configured; the first rank prints the resolved configuration once it fits, and a sample at the end."""
    from oarlock.train.config import load_config, print_options

    task = [] if args.task is None else ["--train.task", args.task]
    config = load_config(args.config, [*task, *args.overrides])
    if args.options:
        print_options(config)
        return 0

    from oarlock.parallel import initialize
    from oarlock.train.data import PreparedData
    from oarlock.train.loop import Trainer
    from oarlock.train.memory import record_path
    from oarlock.train.run import RunDirectory

    directory = RunDirectory(config.train.out)
    device = config.train.device.partition(":")[0]
    axes = {"data": config.parallel.data, "context": config.parallel.context}
    with initialize(device, timeout_seconds=config.parallel.timeout_seconds, **axes) as mesh:
        is_first = mesh.replica == 0
        prompt, written = config.train.sample, ""
        if args.resume == "auto" and directory.finished(config):
            if is_first:
                print(f"{directory.path} has finished; nothing is left to train", file=sys.stderr)
            if prompt == "auto":
                prompt = _last_prompt(directory.path)
        else:
            if is_first:
                print(f"reading   {config.data.corpus}", file=sys.stderr, flush=True)
            trainer = Trainer(config, resume=args.resume, mesh=mesh)
            if is_first:
                with read_or_not():
                    print(config.to_toml(), flush=True)
            stopped_by = trainer.run().stopped_by
            if config.memory.record:
                written = f"memory    {record_path(config.memory, trainer.rank)}"
            if stopped_by:
                if is_first and written:
                    print(written, file=sys.stderr)
                return 0
            if prompt == "auto":
                data, room = trainer.data, config.data.sequence_length // 2
                prompt = opening_words(data, room) if isinstance(data, PreparedData) else ""
        if is_first:
            if prompt:
                _sample(directory.path, prompt, config.train.device)
            print(f"\nreport    {directory.report}\nweights   {directory.export}", file=sys.stderr)
            if written:
                print(written, file=sys.stderr)
            folder = shlex.quote(str(directory.path))
            print(f'continue  {own_command()} generate {folder} "your prompt"', file=sys.stderr)
    return 0


def own_command() -> str:
    """What a shell starts this installation with: `oarlock` where it finds that one, else a path."""
    script = Path(sys.executable).parent / "oarlock"
    found = shutil.which("oarlock")
    if found and Path(found).resolve() == script.resolve():
        return "oarlock"
    first, rest = (script, []) if script.is_file() else (Path(sys.executable), ["-m", "oarlock"])
    path = first.relative_to(Path.cwd()) if first.is_relative_to(Path.cwd()) else first
    return shlex.join([str(path) if len(path.parts) > 1 else f"./{path}", *rest])


def opening_words(data: "PreparedData", max_tokens: int) -> str:
    """How the first held-out document begins: a few words of its first line, of at most `max_tokens` tokens."""
    from oarlock.train.data import load_tokenizer

    tokens = data.validation.document(0)[: min(max_tokens, _OPENING_TOKENS)]
    text = load_tokenizer(data.tokenizer_path).decode(tokens.tolist()).rstrip("\ufffd")  # half of a character
    first_line = next(iter(text.strip().splitlines()), "")
    return " ".join(first_line.split()[:_OPENING_WORDS])


def _last_prompt(run_directory: Path) -> str:
    from oarlock.train.metrics import read_metrics

    prompts = [record["prompt"] for record in read_metrics(run_directory) if record.get("event") == "sample"]
    return prompts[-1] if prompts else ""


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
    text = heard.getvalue().removeprefix(prompt)
    records = read_metrics(run_directory)
    samples = [(record["prompt"], record["text"]) for record in records if record.get("event") == "sample"]
    if samples[-1:] != [(prompt, text)]:
        last_step = max(record["step"] for record in records)
        with MetricsLog(run_directory, tensorboard=False) as log:
            log.resume(last_step)
            log.write("event", last_step, event="sample", prompt=prompt, text=text)
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
