"""One HTML page about a recording: a map of addresses over time, the blocks at a moment, stacks and curves.

The file is self-contained: no network, at most 20,000 rectangles however long the recording.
"""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from oarlock.memory.amounts import allocations, amount
from oarlock.memory.events import Action, Mark, Recording
from oarlock.memory.picture import Picture, largest_gap, picture, samples
from oarlock.memory.summary import largest_at_peak, told_events
from oarlock.page import Page, Series, line_chart

_COLORS = {"parameter": 1, "gradient": 2, "activation": 3, "optimizer": 4, "temporary": 5}
_MOST_NAMES, _MOST_STACKS, _MOST_SPANS = 20_000, 4_000, 600
_NUM_SAMPLES, _NUM_GAP_SAMPLES = 400, 120


def write_page(recording: Recording, path: str | os.PathLike[str], *, title: str = "Memory") -> Path:
    """Writes the page.

    Args:
        recording: what is shown.
        path: of the HTML file.
        title: its heading.

    Returns:
        `path`.
    """
    shown = picture(recording)
    page = Page(title, subtitle=told_events(recording), kicker="Oarlock memory")
    page.facts(_facts(recording, shown))
    folder = resources.files("oarlock.memory")
    read = {name: (folder / name).read_text(encoding="utf-8") for name in ("view.html", "view.js", "view.css")}
    page.interactive(read["view.html"], read["view.js"], _data(recording, shown), style=read["view.css"])
    page.heading("Over time")
    page.charts(_charts(recording, shown))
    page.heading("At the peak")
    page.table(largest_at_peak(recording, shown, 25), ["bytes", "allocations", "kind", "name", "where"])
    return page.write(path)


def _facts(recording: Recording, shown: Picture) -> list[tuple[str, object, str]]:
    lives, peak = shown.lives, shown.lives.peak()
    rows, before = lives.live_at(peak), int((lives.begin < 0).sum())
    facts: list[tuple[str, object, str]] = [
        ("Peak", amount(int(lives.size[rows].sum())), f"{allocations(rows.size)}, after event {peak + 1:,}"),
        ("At the end", amount(int(lives.size[lives.end == lives.num_events].sum())), "still there"),
        (
            "Allocations",
            f"{int((recording.events['action'] == Action.ALLOC).sum()):,}",
            f"and {before:,} from before the first event" if before else "",
        ),
    ]
    if shown.mapped.addr.size:
        mapped = shown.mapped.bytes_after(len(recording))
        gap, largest = largest_gap(lives, shown.mapped, peak)
        facts += [
            ("Mapped", amount(int(mapped.max(initial=0))), "at most"),
            ("Free at the peak", amount(gap), f"largest piece {amount(largest)}"),
        ]
        moved = recording.events[(recording.events["action"] == Action.MAP) & (recording.events["detail"] == 1)]
        facts.append(("Moved", amount(int(moved["size"].sum())), "of pages, no live byte"))
    if failures := int((recording.events["action"] == Action.OOM).sum()):
        facts.append(("Out of memory", failures, "time" if failures == 1 else "times"))
    return facts


def _color(shown: Picture, kind: int) -> int:
    """One of the page's six colours (from 1): the same for a kind on every page."""
    if shown.kinds[kind] in _COLORS:
        return _COLORS[shown.kinds[kind]]
    own = [name for name in shown.kinds if name not in _COLORS]
    named = len(own) < len(shown.kinds)
    return 6 if named else own.index(shown.kinds[kind]) % 6 + 1


def _charts(recording: Recording, shown: Picture) -> list[str]:
    if not len(recording):
        return []
    at = np.unique([*samples(len(recording), _NUM_SAMPLES), shown.lives.peak()])
    times = ((recording.events["t_ns"][at] - recording.events["t_ns"][0]) / 1e6).tolist()
    by_kind = []
    for kind, name in enumerate(shown.kinds[:5]):
        rows = shown.kind == kind
        change = np.zeros(len(recording) + 1)
        np.add.at(change, np.maximum(shown.lives.begin[rows], 0), shown.lives.size[rows])
        np.add.at(change, shown.lives.end[rows], -shown.lives.size[rows])
        by_kind.append(Series(name, times, (np.cumsum(change)[at] / 2**20).tolist(), color=_color(shown, kind) - 1))
    live = (shown.lives.live_bytes()[at] / 2**20).tolist()
    charts = [line_chart(by_kind, title="Kinds", x_label="ms", y_label="MiB")]
    if not shown.mapped.addr.size:
        return [line_chart([Series("live", times, live)], title="Live", x_label="ms", y_label="MiB"), *charts]
    at_gaps = samples(len(recording), _NUM_GAP_SAMPLES)
    gaps = [largest_gap(shown.lives, shown.mapped, event) for event in at_gaps.tolist()]
    gap_times = ((recording.events["t_ns"][at_gaps] - recording.events["t_ns"][0]) / 1e6).tolist()
    mapped = (shown.mapped.bytes_after(len(recording))[at] / 2**20).tolist()
    lines = [Series("live", times, live), Series("mapped", times, mapped)]
    share = [100 * (1 - largest / free) if free else 0.0 for free, largest in gaps]
    return [
        line_chart(lines, title="Live and mapped", x_label="ms", y_label="MiB"),
        line_chart(
            [Series("free outside the largest piece", gap_times, share)],
            title="Fragmentation",
            x_label="ms",
            y_label="% of the free memory that is not in its largest piece",
        ),
        *charts,
    ]


def _data(recording: Recording, shown: Picture) -> dict[str, Any]:
    """What the script draws: columns of numbers, times in microseconds from the first event."""
    lives, own, mapped, drawn = shown.lives, shown.own, shown.mapped, shown.shown_mapped
    times = np.concatenate([recording.events["t_ns"], recording.events["t_ns"][-1:]]) if len(recording) else np.zeros(1)
    micros = (times - times[0]) / 1e3

    def moment(event: Any) -> list[float]:
        return np.round(micros[np.clip(event, 0, len(micros) - 1)], 1).tolist()

    names, name_rows = _table(lives.name[own], _MOST_NAMES)
    stacks, stack_rows = _table(lives.stack[own], _MOST_STACKS)
    frames = sorted({level for number in stacks for level in recording.stacks[number]})
    row = {level: i for i, level in enumerate(frames)}
    at = np.unique([*samples(len(recording), _NUM_SAMPLES), max(0, lives.peak())])
    pending = lives.freed < lives.end
    return {
        "numEvents": len(recording),
        "micros": float(micros[-1]),
        "total": shown.axis.total,
        "peak": max(0, lives.peak()),
        "kinds": [[name, _color(shown, i)] for i, name in enumerate(shown.kinds)],
        "rects": {
            "i0": np.maximum(lives.begin[own], 0).tolist(),
            "i1": lives.end[own].tolist(),
            "freed": np.where(pending[own], lives.freed[own], -1).tolist(),
            "t0": moment(np.maximum(lives.begin[own], 0)),
            "t1": moment(lives.end[own]),
            "before": (lives.begin[own] < 0).astype(int).tolist(),
            "y": shown.axis.place(lives.addr[own]).tolist(),
            "h": lives.size[own].tolist(),
            "addr": lives.addr[own].tolist(),
            "kind": shown.kind[own].tolist(),
            "name": name_rows,
            "stack": stack_rows,
        },
        "numOthers": len(lives) - own.size,
        "cells": shown.cells.tolist(),
        "columns": shown.columns.tolist(),
        "columnTimes": moment(shown.columns),
        "mapped": {
            "i0": np.maximum(mapped.begin[drawn], 0).tolist(),
            "i1": mapped.end[drawn].tolist(),
            "t0": moment(np.maximum(mapped.begin[drawn], 0)),
            "t1": moment(mapped.end[drawn]),
            "y": shown.axis.place(mapped.addr[drawn]).tolist() if drawn.size else [],
            "h": mapped.size[drawn].tolist(),
        },
        "names": [recording.names[number] for number in names],
        "frames": [list(recording.frames[level]) for level in frames],
        "stacks": [[row[level] for level in recording.stacks[number]] for number in stacks],
        "spans": [
            [*span[:2], *moment(np.array(span[:2])), recording.names[span[2]], span[3]] for span in _spans(recording)
        ],
        "curve": {"i": at.tolist(), "t": moment(at), "live": lives.live_bytes()[at].tolist() if len(recording) else []},
    }


def _spans(recording: Recording) -> list[tuple[int, int, int, int]]:
    """Begin, end, name and depth of the longest regions of the program, out of memory as regions of no length."""
    events = recording.events
    told = (events["action"] == Action.ANNOTATION) & (events["detail"] != Mark.BLOCK) | (events["action"] == Action.OOM)
    spans: list[tuple[int, int, int, int]] = []
    opened: list[tuple[int, int]] = []
    for event in np.flatnonzero(told).tolist():
        name, detail = int(events["name"][event]), events["detail"][event]
        if events["action"][event] == Action.OOM or detail == Mark.MOMENT:
            spans.append((event, event, name, 0))
        elif detail == Mark.BEGIN:
            opened.append((event, name))
        else:
            at = next((i for i in reversed(range(len(opened))) if opened[i][1] == name), None)
            if at is None:  # it began before the first event
                spans.append((0, event, name, 0))
            else:
                spans.append((opened[at][0], event, name, at))
                del opened[at:]
    spans += [(event, len(recording), name, depth) for depth, (event, name) in enumerate(opened)]
    return sorted(spans, key=lambda span: span[0] - span[1])[:_MOST_SPANS]


def _table(numbers: Any, most: int) -> tuple[list[int], list[int]]:
    """The numbers that occur, the most frequent first, and for each entry its row there (0 for those left out)."""
    found, counts = np.unique(numbers, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:most]
    kept = [0, *(n for n in found[order].tolist() if n)]
    row = {number: i for i, number in enumerate(kept)}
    return kept, [row.get(number, 0) for number in np.asarray(numbers).tolist()]
