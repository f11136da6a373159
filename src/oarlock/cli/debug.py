"""`oarlock debug {trace,graph,diff,nan}`: record the first steps of a training, draw them, compare two, find a NaN."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from oarlock.train.loop import Trainer


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser("debug", help="record, draw and compare what a training does")
    commands = parser.add_subparsers(dest="debug_command", metavar="COMMAND", required=True)
    for name, command in _COMMANDS.items():
        words = commands.add_parser(name, help=command.help, description=command.description)
        for argument, about in command.arguments.items():
            words.add_argument(argument, **about)
        words.set_defaults(run=command.run, **({"accepts_overrides": True} if "config" in command.arguments else {}))


def run_trace(args: argparse.Namespace) -> int:
    """Train under a trace and say where it is."""
    from oarlock import debug

    trainer = _trainer(args)
    digests = None if args.digests == "none" else args.digests
    trainer.recorder = debug.trace(trainer.model, args.dir, stacks=True, digests=digests, probes=digests is not None)
    trainer.run()
    print(args.dir)
    return 0


def run_graph(args: argparse.Namespace) -> int:
    """Write the drawing and say where."""
    from oarlock import debug

    target = args.out or (args.trace if args.trace.is_dir() else args.trace.parent) / "graph.html"
    if target.suffix not in (".html", ".dot"):
        raise ValueError(f"--out {target} must end in .html or .dot")
    graph = debug.graph_of(debug.read_records(args.trace), step=args.step, only=args.only, stacks=args.trace)
    graph = graph.part(start=args.start, end=args.end, region=args.region)
    print(graph.write(target))
    return 0


def run_diff(args: argparse.Namespace) -> int:
    """Print the report; the status tells whether the runs differ."""
    from oarlock import debug

    a, b = debug.trace_files(args.a), debug.trace_files(args.b)
    if len(a) == 1 and len(b) == 1:  # whichever ranks they are
        pairs = [("", *a.values(), *b.values())]
    elif a.keys() == b.keys():
        pairs = [(f"rank {rank}: ", a[rank], b[rank]) for rank in a]
    else:
        raise ValueError(
            f"{args.a} has the ranks {list(a)}, {args.b} has {list(b)}; name two files, such as {a[min(a)]}"
        )
    differ = False
    for label, first, second in pairs:
        report = debug.compare(debug.read_records(first), debug.read_records(second), tolerance=args.tolerance)
        print(label + report.text())
        differ |= not report.same
    return int(differ)


def run_nan(args: argparse.Namespace) -> int:
    """Train under the watch; the status tells whether something was found."""
    from oarlock import debug
    from oarlock.train.divergence import NonFiniteLossError

    trainer = _trainer(args)
    found = trainer.recorder = debug.find_nonfinite(trainer.model)
    found.step_number = 1  # as the run counts
    try:
        trainer.run()
    except NonFiniteLossError as error:
        print(error)
    print(found.report())
    return 0 if found.first is None else 1


_FIXED = {
    "train.out": "--dir names the folder",
    "train.steps": "--steps gives their number",
    "train.eval_every": "nothing is evaluated",
}


def _trainer(args: argparse.Namespace) -> "Trainer":
    from oarlock.parallel import Mesh
    from oarlock.train import load_config
    from oarlock.train.loop import Trainer
    from oarlock.train.run import RunDirectory

    for override in args.overrides:
        name = override.partition("=")[0].removeprefix("--")
        if name in _FIXED:
            raise ValueError(f"--{name} means nothing here: {_FIXED[name]}")
    if RunDirectory(args.dir / "run").is_taken():
        raise ValueError(f"{args.dir} holds an earlier run; choose another folder with --dir")
    fixed = ["--train.steps", str(args.steps), "--train.out", str(args.dir / "run"), "--train.eval_every", "0"]
    return Trainer(load_config(args.config, [*args.overrides, *fixed]), resume="never", mesh=Mesh.build())


class _Command(NamedTuple):
    run: Callable[[argparse.Namespace], int]
    help: str
    description: str
    arguments: dict[str, dict[str, Any]]


def _training(folder: str) -> dict[str, dict[str, Any]]:
    """Arguments of commands that train."""
    return {
        "config": {"type": Path, "metavar": "CONFIG.toml"},
        "--dir": {"type": Path, "required": True, "metavar": "DIR", "help": folder},
        "--steps": {"type": int, "default": 1, "help": "optimizer steps (1)"},
    }


_COMMANDS = {
    "trace": _Command(
        run_trace,
        "train a few steps and record all calls, gradients and digests",
        "Train the first steps that CONFIG describes and record them in DIR, for graph and diff. Further words "
        "--section.key VALUE are as those of oarlock train.",
        {
            **_training("folder of the trace, and of the run"),
            "--digests": {"choices": ["sha1", "md5", "digest64", "none"], "default": "sha1"},
        },
    ),
    "graph": _Command(
        run_graph,
        "draw a trace",
        "Draw the forward and backward graph of a trace as an HTML page that needs no network, or as DOT.",
        {
            "trace": {"type": Path, "metavar": "TRACE", "help": "folder or file of a trace"},
            "--out": {"type": Path, "metavar": "PATH", "help": ".html or .dot; TRACE/graph.html by default"},
            "--only": {"choices": ["forward", "backward"], "help": "one of both"},
            "--step": {"type": int, "default": 0, "help": "which iteration (0)"},
            "--from": {"dest": "start", "default": "", "metavar": "NAME", "help": "only what NAME leads to"},
            "--to": {"dest": "end", "default": "", "metavar": "NAME", "help": "only what leads to NAME"},
            "--region": {"default": "", "metavar": "MODULE", "help": "only this module and its neighbours"},
        },
    ),
    "diff": _Command(
        run_diff,
        "where two traces part",
        "Name the first record whose inputs match and whose outputs differ. The status is 0 if the runs are the same, "
        "1 if they differ. Folders with several ranks are compared rank by rank.",
        {
            "a": {"type": Path, "metavar": "RUN_A"},
            "b": {"type": Path, "metavar": "RUN_B"},
            "--tolerance": {"type": float, "metavar": "SHARE", "help": "allow differences of this relative size"},
        },
    ),
    "nan": _Command(
        run_nan,
        "train and name what makes the first value that is not finite",
        "Train the steps that CONFIG describes, watching every value: the first call or backward node that makes a NaN "
        "is named, told from those that pass it on. The status is 1 if there is one.",
        _training("folder of the run"),
    ),
}
