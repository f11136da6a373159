"""`oarlock memory`: a recording of memory, or a snapshot of CUDA's, as a page or tables; replays of allocations."""

import argparse
import math
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oarlock.memory import Recording, Trace


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser("memory", help="look at a recording or snapshot of memory")
    commands = parser.add_subparsers(dest="memory_command", metavar="COMMAND", required=True)
    for name, run, summary in (
        ("view", run_view, "write an HTML page about it"),
        ("summary", run_summary, "print tables about it"),
    ):
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}. FILE is a recording of Oarlock (.npz) or a snapshot of "
            "torch.cuda.memory (.pickle); nothing in it is run, and only plain containers are read.",
        )
        command.add_argument("file", type=Path, metavar="FILE")
        command.add_argument("--device", type=int, metavar="N", help="of a snapshot; by default the busiest")
        command.add_argument(
            "--from", type=float, default=0.0, metavar="SECONDS", dest="start", help="leave out what came before"
        )
        command.add_argument(
            "--to", type=float, default=math.inf, metavar="SECONDS", dest="stop", help="leave out what came after"
        )
        if name == "view":
            command.add_argument(
                "--out",
                type=Path,
                metavar="PATH",
                help="FILE with .html by default; .json for Perfetto, .pickle for torch's viewers, .npz a recording",
            )
        command.set_defaults(run=run)
    add_replay(commands)


def add_replay(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `oarlock memory replay`."""
    replay = commands.add_parser(
        "replay",
        help="simulate how allocators would do with the allocations of a file",
        description="Simulate how allocators would do with the allocations of TRACE (.npz): a trace or a recording of "
        "Oarlock. Without --capacity, the smallest capacity that each needs.",
    )
    replay.add_argument("trace", type=Path, metavar="TRACE")
    replay.add_argument(
        "--capacity",
        metavar="SIZE",
        help="of the device: bytes, as in 40GiB, or a multiple of what is live, as in 1.03x",
    )
    replay.add_argument("--allocator", action="append", metavar="NAME", help="again for more; all by default")
    replay.add_argument("--lag", type=int, default=256, metavar="N", help="events until work is done (256)")
    replay.set_defaults(run=run_replay)


def run_view(args: argparse.Namespace) -> int:
    """Write the page and say where."""
    from oarlock.memory import write

    _is_recording(args.file)
    target = args.out or args.file.with_suffix(".html")
    if target.exists() and target.samefile(args.file):
        raise ValueError(f"{target} would be written over itself; name another file with --out")
    print(write(_read(args), target))
    return 0


def run_summary(args: argparse.Namespace) -> int:
    """Print the tables."""
    from oarlock.memory import memory_summary

    print(memory_summary(_read(args)))
    return 0


def run_replay(args: argparse.Namespace) -> int:
    """Print a line per allocator."""
    from oarlock.memory import ALLOCATORS, min_capacity, replay
    from oarlock.memory.amounts import amount

    trace, missing = _read_trace(args.trace)
    peak = trace.peak_bytes()
    if peak == 0:
        raise ValueError(f"{args.trace} allocates nothing")
    capacity = None if args.capacity is None else _capacity(args.capacity, peak)
    print(f"{len(trace):,} events, at most {amount(peak)} live. Simulated:")
    if missing:
        print(f"  ({missing})")
    for name in args.allocator or ALLOCATORS:
        if capacity is None:
            needed = min_capacity(trace, name, lag=args.lag)
            print(f"  {name:14s} needs {amount(needed)}, {needed / peak:.4f} x what is live")
            continue
        run = replay(trace, name, capacity, lag=args.lag)
        if run.failed_at is not None:
            asked = int(trace.size[run.failed_at])
            print(f"  {name:14s} runs out of memory at event {run.failed_at:,}, which asks for {amount(asked)}")
            continue
        print(
            f"  {name:14s} finishes; beyond the first maps {amount(run.churn_bytes)} mapped, unmapped or copied; "
            f"{run.num_device_syncs} stops of the device, {run.num_stream_syncs} waits for a stream"
        )
    return 0


def _capacity(text: str, peak: int) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d*)?) ?(x|[KMGT]i?B|B)?", text)
    if match is None:
        raise ValueError(f"--capacity must be like 40GiB, 80GB, 123456 or 1.03x, got {text!r}")
    unit = match[2] or "B"
    if unit == "x":
        return int(float(match[1]) * peak)
    return int(float(match[1]) * (1024 if "i" in unit else 1000) ** "BKMGT".index(unit[0]))


def _read_trace(path: Path) -> "tuple[Trace, str]":
    """The trace, and what of it is missing."""
    from oarlock.memory import Recording, Trace
    from oarlock.memory.amounts import allocations, amount
    from oarlock.memory.events import open_arrays
    from oarlock.memory.intervals import intervals

    if not _is_recording(path):
        made = path.with_suffix(".npz")
        raise ValueError(
            f"{path} is a snapshot of torch; `oarlock memory view {path} --out {made}` makes a trace of it"
        )
    try:
        with open_arrays(path) as file:
            is_trace = "events" not in file.files
    except (ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a trace of allocations: {error}") from error
    if is_trace:
        return Trace.load(path), ""
    recording = Recording.load(path)
    lives = intervals(recording)
    before = lives.begin < 0
    told = []
    if before.any():
        size = amount(int(lives.size[before].sum()))
        number = int(before.sum())
        counts = "count" if number > 1 else "counts"
        told.append(f"{allocations(number)} of {size} from before the first event {counts} as made at the start")
    if recording.num_dropped:
        told.append(
            f"the first {recording.num_dropped:,} events were not kept: what they had live at most is not known"
        )
    return Trace.of(recording), "; ".join(told)


def _is_recording(path: Path) -> bool:
    """Whether the file begins as one of Oarlock does; else it may be a snapshot.

    Raises:
        ValueError: it begins as neither does.
    """
    with open(path, "rb") as file:
        head = file.read(64).lstrip()
    if not head or head[:1] == b"\x80" or head[:2] == b"PK":
        return head[:2] == b"PK"
    found = {b"<": "HTML or XML", b"{": "JSON", b"[": "JSON"}.get(head[:1], "something else")
    raise ValueError(
        f"{path} is {found}, not a recording of Oarlock (.npz) or a snapshot of torch.cuda.memory (.pickle)"
    )


def _read(args: argparse.Namespace) -> "Recording":
    from oarlock.memory import Recording, read_torch_snapshot, window

    if not _is_recording(args.file):
        recording = read_torch_snapshot(args.file, device=args.device)
    elif args.device is not None:
        raise ValueError(
            f"--device chooses within a snapshot of torch (.pickle); {args.file} is a recording of one device"
        )
    else:
        recording = Recording.load(args.file)
    if (args.start, args.stop) != (0.0, math.inf):
        recording = window(recording, args.start, args.stop)
    return recording
