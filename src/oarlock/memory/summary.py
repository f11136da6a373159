"""Tables about a recording, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from oarlock.memory.amounts import amount
from oarlock.memory.events import Action, BlockState, Recording
from oarlock.memory.picture import Picture, largest_gap, picture
from oarlock.memory.sources import Source

_NUM_BUCKETS = 12
_FIRST_BUCKET = 1 << 10


def memory_summary(of: Recording | Source) -> str:
    """Three tables: figures, free and taken blocks by size, and what takes most at the peak.

    Args:
        of: a recording, or a recorder that is asked for one.
    """
    recording = of if isinstance(of, Recording) else of.recording()
    shown = picture(recording)
    parts = [
        f"Memory of {told_events(recording)}",
        _table(["", "now", "at the peak"], _figures(recording, shown)),
        _table(["size of a block", "taken", "bytes", "free", "bytes"], _histogram(recording)),
        _table(["bytes at the peak", "number", "kind", "name", "where"], largest_at_peak(recording, shown, 12)),
    ]
    return "\n\n".join(parts)


def told_events(recording: Recording) -> str:
    """What was recorded, how long, and whether the beginning is there."""
    times = recording.events["t_ns"]
    seconds = float(times[-1] - times[0]) / 1e9 if times.size else 0.0
    text = f"{recording.source}: {len(recording):,} events in {seconds:.3g} s"
    if recording.num_dropped:
        text += f", after {recording.num_dropped:,} that are no longer kept"
    return text


def _figures(recording: Recording, shown: Picture) -> list[list[str]]:
    lives, last = shown.lives, len(recording) - 1
    moments = [last, lives.peak()]
    rows = [lives.live_at(event) if last >= 0 else np.arange(len(lives)) for event in moments]
    table = [
        ["allocations", *(f"{found.size:,}" for found in rows)],
        ["taken", *(amount(int(lives.size[found].sum())) for found in rows)],
        ["freed, but still in use", *(amount(_pending(shown, e, r)) for e, r in zip(moments, rows, strict=True))],
    ]
    if shown.mapped.addr.size and last >= 0:
        mapped = shown.mapped.bytes_after(len(recording))
        gaps = [largest_gap(lives, shown.mapped, event) for event in moments]
        table += [
            ["mapped", *(amount(int(mapped[event])) for event in moments)],
            ["free", *(amount(free) for free, _ in gaps)],
            ["largest free piece", *(amount(largest) for _, largest in gaps)],
        ]
    action = recording.events["action"]
    made = f"{int((action == Action.ALLOC).sum()):,}"
    before = int((lives.begin < 0).sum())
    table.append(["allocations made", made, ""])
    if before:
        table.append(["made before the first event", f"{before:,}", ""])
    if failures := int((action == Action.OOM).sum()):
        table.append(["out of memory", f"{failures:,}", ""])
    return table


def _pending(shown: Picture, event: int, rows: NDArray[np.int64]) -> int:
    lives = shown.lives
    return int(lives.size[rows[lives.freed[rows] <= event]].sum())


def _histogram(recording: Recording) -> list[list[str]]:
    """Blocks of the end in 12 classes of size, each four times the one before."""
    blocks = recording.blocks
    sizes = blocks["size"].astype(np.float64)
    bucket = np.clip(np.floor(np.log2(np.maximum(sizes, 1) / _FIRST_BUCKET) / 2).astype(int) + 1, 0, _NUM_BUCKETS - 1)
    taken = np.isin(blocks["state"], (BlockState.LIVE, BlockState.PENDING))
    free = blocks["state"] == BlockState.FREE
    table = []
    for i in range(_NUM_BUCKETS):
        chosen = [(bucket == i) & which for which in (taken, free)]
        if not any(which.any() for which in chosen):
            continue
        limit = amount(_FIRST_BUCKET * 4**i)
        name = f"below {limit}" if i < _NUM_BUCKETS - 1 else f"{amount(_FIRST_BUCKET * 4 ** (i - 1))} and more"
        cells = [(f"{int(which.sum()):,}", amount(int(blocks["size"][which].sum()))) for which in chosen]
        table.append([name, *cells[0], *cells[1]])
    return table


def largest_at_peak(recording: Recording, shown: Picture, count: int) -> list[list[str]]:
    """Bytes, number, kind, name and place of what takes most at the peak."""
    lives, rows = shown.lives, shown.lives.live_at(shown.lives.peak())
    keys = np.stack([shown.kind[rows], lives.name[rows], lives.stack[rows]], axis=1)
    groups, group = np.unique(keys, axis=0, return_inverse=True)
    sizes = np.bincount(group.ravel(), lives.size[rows], len(groups))
    counts = np.bincount(group.ravel(), minlength=len(groups))
    table = []
    for i in np.argsort(-sizes, kind="stable")[:count].tolist():
        kind, name, stack = groups[i].tolist()
        size, times = amount(float(sizes[i])), f"{counts[i]:,}"
        table.append([size, times, shown.kinds[kind], recording.names[name], recording.place(stack)])
    return table


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as needed; all but the last two of five, and the first of others, to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    text = len(header) == 5 and header[-1] == "where"
    lines = []
    for row in [header, ["-" * width for width in widths], *rows]:
        cells = [
            cell.rjust(width) if (i < 2 if text else i > 0) else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
