"""`oarlock <command>`: dispatch only. Every command lives in a module of its own with `add_parser` and `run`."""

import argparse
import contextlib
import importlib
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from oarlock import __version__
from oarlock.cli.doctor import EXTRAS

COMMANDS = {
    "train": "train a language model from a TOML file",
    "generate": "continue prompts with a trained run or a Hugging Face folder",
    "data": "tokenise a corpus once, into a cache the trainer reads",
    "inspect": "tensors, sizes and checksums of a checkpoint or a Hugging Face folder",
    "convert": "rewrite a checkpoint or a Hugging Face folder as another",
    "memory": "look at a recording or snapshot of memory",
    "debug": "record, draw and compare what a training does",
    "compile": "where torch.compile cannot follow a model",
    "plan": "parameters, FLOPs and memory of a configuration, without allocating",
    "bench": "run a benchmark and compare it with an earlier one",
    "paddle": "what of Paddle's API exists on torch",
    "doctor": "what this installation can do, and why not",
}


def entry() -> None:
    """Console entry point: exits with the command's status."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # started with the stream closed; the next opened file would take its place
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - lives as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as on stderr: a character must not end a run
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run one command line. User errors end as one line on stderr and status 2, Ctrl-C as one and status 130.

    Set `OARLOCK_TRACEBACK=1` to see the full traceback instead.
    """
    # A busy-waiting OpenMP team costs 10x when cores are shared; must be set before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    command = next((word for word in arguments if not word.startswith("-")), "")
    name = f"oarlock {command}" if command in COMMANDS else "oarlock"
    try:
        with warnings.catch_warnings():
            _show_warnings_in_one_line(name)
            return _dispatch(arguments, command)
    except BrokenPipeError:  # whoever read the output has seen enough
        discard_output()
        return 141
    except KeyboardInterrupt:
        if os.environ.get("OARLOCK_TRACEBACK"):
            raise
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    except (ValueError, OSError, RuntimeError, ImportError, MemoryError) as error:
        if os.environ.get("OARLOCK_TRACEBACK"):
            raise
        print(f"{name}: {_in_words(error)}", file=sys.stderr)
        if type(error) is RuntimeError:  # not one of ours: where it came from may matter
            print("OARLOCK_TRACEBACK=1 shows the full traceback", file=sys.stderr)
        return 2


def _dispatch(arguments: Sequence[str], command: str) -> int:
    parser = argparse.ArgumentParser(prog="oarlock", description="Train large models, take them to inference.")
    parser.add_argument("--version", action="version", version=f"oarlock {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        if name == command:  # importing only what runs keeps `oarlock --help` instant
            importlib.import_module(f"oarlock.cli.{name}").add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary)
    parsed, rest = parser.parse_known_args(arguments)
    if parsed.command is None:
        if rest:
            parser.error(f"unrecognised arguments: {' '.join(rest)}")
        parser.print_help()
        return 0
    if getattr(parsed, "accepts_overrides", False):
        parsed.overrides, rest = rest, []
    if (collects := getattr(parsed, "collects", "")) and (words := _plain_words(rest)) is not None:
        getattr(parsed, collects).extend(words)
        rest = []
    if rest:
        parser.error(f"unrecognised arguments: {' '.join(rest)}")
    return parsed.run(parsed)


def _in_words(error: Exception) -> str:
    """What an error says, without the number of a system call's, and with the command that installs what is missing."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    text = str(error) or type(error).__name__
    if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
        text += f"; install it with: pip install 'oarlock[{EXTRAS[error.name][0]}]'"
    return text


def _show_warnings_in_one_line(name: str) -> None:
    show = warnings.showwarning

    def show_in_one_line(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if category is UserWarning:  # ours: about the user's files and settings, not about a line of code
            print(f"{name}: {message}", file=sys.stderr)
        else:
            show(message, category, *where, **more)

    warnings.showwarning = show_in_one_line


@contextlib.contextmanager
def read_or_not() -> Iterator[None]:
    """Go on where nobody reads standard output any more, for output that is not what the command is for."""
    try:
        yield
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """Send the process's standard output nowhere, where nobody reads it any more."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # a stream without a descriptor has no pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())  # type: ignore[union-attr]


def _plain_words(words: Sequence[str]) -> list[str] | None:
    """Positional words that argparse left over because options came before them; None if there is an option.

    All that follows a `--` is positional.
    """
    end = words.index("--") if "--" in words else len(words)
    plain = list(words[:end])
    if any(word.startswith("-") and word != "-" for word in plain):
        return None
    return plain + list(words[end + 1 :])
