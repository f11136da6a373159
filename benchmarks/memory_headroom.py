"""How close to what is live a device's capacity may come: replays of recorded traces against models of allocators.

Everything here is simulated (see oarlock.memory.replay); `python benchmarks/memory.py` prints it.
"""

import hashlib
import math
import time
from pathlib import Path
from typing import Any

import torch

import memory_traces
from oarlock.memory import ALLOCATORS, Replay, Trace, min_capacity, replay

FOLDER = Path(__file__).parents[1] / "build" / "memory-traces"
GIB = 2**30


def traces(*, record: bool) -> dict[str, Trace] | None:
    """The suite by name: from build/memory-traces, or recorded now. None where one is missing and must not be."""
    source = Path(memory_traces.__file__).read_bytes()
    key = hashlib.sha1(source + torch.__version__.encode()).hexdigest()[:10]
    paths = {name: FOLDER / key / f"{name}.npz" for name in memory_traces.NAMES}
    if not record and not all(path.exists() for path in paths.values()):
        return None
    for name, path in paths.items():
        if not path.exists():
            started = time.perf_counter()
            trace = memory_traces.record(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            trace.save(path)
            print(f"recorded {name}: {len(trace):,} events in {time.perf_counter() - started:.1f} s", flush=True)
    return {name: Trace.load(path) for name, path in paths.items()}


def rows(*, quick: bool) -> list[dict[str, Any]]:
    """The figures cmin_max, cmin_geomean, churn_103 and works_101, and the tables behind them on standard output."""
    suite = traces(record=not quick)
    if suite is None:
        print("no replays: the traces are not recorded yet, which takes a minute or two; run once without --quick")
        return []
    peaks = {name: trace.peak_bytes() for name, trace in suite.items()}
    needed = {name: {a: min_capacity(trace, a) / peaks[name] for a in ALLOCATORS} for name, trace in suite.items()}
    print("\nsmallest workable capacity / peak live, simulated")
    print(f"{'trace':15s} {'events':>8s} {'peak GiB':>9s} " + " ".join(f"{a:>14s}" for a in ALLOCATORS))
    for name, trace in suite.items():
        values = " ".join(f"{needed[name][a]:14.4f}" for a in ALLOCATORS)
        print(f"{name:15s} {len(trace):8,} {peaks[name] / GIB:9.2f} {values}")
    means = {a: geomean([needed[name][a] for name in suite]) for a in ALLOCATORS}
    print(f"{'geometric mean':34s} " + " ".join(f"{means[a]:14.4f}" for a in ALLOCATORS))

    at = {
        (name, share): {a: replay(trace, a, int(peaks[name] * share)) for a in ALLOCATORS}
        for name, trace in suite.items()
        for share in (1.01, 1.03, 1.06)
    }
    print(
        "\nGiB mapped, unmapped and copied beyond the first maps (stops of the device | waits for a stream), simulated"
    )
    print(f"{'trace':15s} {'capacity':>9s} " + " ".join(f"{a:>18s}" for a in ALLOCATORS))
    for (name, share), runs in at.items():
        print(f"{name:15s} {share:8.2f}x " + " ".join(f"{outcome(runs[a]):>18s}" for a in ALLOCATORS))

    ours, theirs = needed_churn(at, 1.03)
    stops = sum(runs["oarlock"].num_device_syncs for runs in at.values())
    works = [name for name in suite if at[name, 1.01]["oarlock"].finished]
    fails = [name for name in suite if not at[name, 1.01]["expandable-20"].finished]
    worst = max(suite, key=lambda name: needed[name]["oarlock"])
    return [
        row("cmin_max", needed[worst]["oarlock"], f"{worst}; simulated, {len(suite)} traces"),
        row(
            "cmin_geomean",
            means["oarlock"],
            f"expandable-20 {means['expandable-20']:.4f}, caching {means['caching']:.4f}",
        ),
        row(
            "churn_103",
            ours / theirs,
            f"{ours / GIB:.1f} / {theirs / GIB:.1f} GiB of expandable-20; {stops} device syncs",
        ),
        row("works_101", len(works) / len(suite), f"of {len(suite)}; expandable-20 runs out in {len(fails)}"),
    ]


def geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def outcome(run: Replay) -> str:
    if not run.finished:
        return "out of memory"
    return f"{run.churn_bytes / GIB:.2f} ({run.num_device_syncs}|{run.num_stream_syncs})"


def needed_churn(at: dict[tuple[str, float], dict[str, Replay]], share: float) -> tuple[int, int]:
    """Bytes of the pool and of expandable segments over the traces that both finish at that share."""
    both = [
        (runs["oarlock"].churn_bytes, runs["expandable-20"].churn_bytes)
        for (_, s), runs in at.items()
        if s == share and runs["oarlock"].finished and runs["expandable-20"].finished
    ]
    return sum(ours for ours, _ in both), sum(theirs for _, theirs in both)


def row(figure: str, value: float, detail: str) -> dict[str, Any]:
    return {"figure": figure, "value": round(value, 4), "detail": detail}
