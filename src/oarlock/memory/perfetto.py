"""A recording as a Perfetto (Chrome trace) file: counters, regions and failures on one time axis."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from oarlock.memory.events import Action, Mark, Recording
from oarlock.memory.picture import largest_gap, picture, samples

_NUM_SAMPLES, _NUM_GAP_SAMPLES = 20_000, 500
_PROCESS = {"pid": 1, "tid": 1}


def write_perfetto(recording: Recording, path: str | os.PathLike[str]) -> Path:
    """Writes JSON for https://ui.perfetto.dev, whole or not at all; counters have at most 20,000 points."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        text = json.dumps({"traceEvents": _events(recording), "displayTimeUnit": "ms"}, separators=(",", ":"))
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return target


def _events(recording: Recording) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "args": {"name": f"memory: {recording.source}"}, **_PROCESS},
        {"ph": "M", "name": "thread_name", "args": {"name": "regions"}, **_PROCESS},
    ]
    if not len(recording):
        return made
    events, shown = recording.events, picture(recording)
    micros = events["t_ns"] / 1e3

    def counter(name: str, at: np.ndarray, **series: np.ndarray) -> None:
        for i, row in enumerate(at.tolist()):
            args = {key: float(values[i]) for key, values in series.items()}
            made.append({"ph": "C", "name": name, "ts": float(micros[row]), "args": args, **_PROCESS})

    at = np.unique([*samples(len(recording), _NUM_SAMPLES), shown.lives.peak()])
    by_kind = {}
    for kind, name in enumerate(shown.kinds):
        change = np.zeros(len(recording) + 1)
        rows = shown.kind == kind
        np.add.at(change, np.maximum(shown.lives.begin[rows], 0), shown.lives.size[rows])
        np.add.at(change, shown.lives.end[rows], -shown.lives.size[rows])
        by_kind[name] = np.cumsum(change)[at]
    counter("live bytes", at, live=shown.lives.live_bytes()[at])
    counter("live bytes by kind", at, **by_kind)
    if shown.mapped.addr.size:
        counter("mapped bytes", at, mapped=shown.mapped.bytes_after(len(recording))[at])
        some = samples(len(recording), _NUM_GAP_SAMPLES)
        gaps = np.array([largest_gap(shown.lives, shown.mapped, event) for event in some.tolist()])
        counter("free bytes", some, free=gaps[:, 0])
        counter("largest free piece", some, bytes=gaps[:, 1])
    phases = {Mark.MOMENT: "i", Mark.BEGIN: "B", Mark.END: "E"}
    special = (events["action"] == Action.OOM) | (
        (events["action"] == Action.ANNOTATION) & (events["detail"] != Mark.BLOCK)
    )
    for t_ns, _addr, size, _stack, name, _tag, _stream, action, detail in events[special].tolist():
        if action == Action.OOM:
            made.append({"ph": "i", "s": "g", "name": f"out of memory: {size} bytes", "ts": t_ns / 1e3, **_PROCESS})
        else:
            scope = {"s": "t"} if detail == Mark.MOMENT else {}
            entry = {"ph": phases[Mark(detail)], "name": recording.names[name], "ts": t_ns / 1e3}
            made.append({**entry, **scope, **_PROCESS})
    return made
