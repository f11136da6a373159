"""A recording in the form of `torch.cuda.memory._snapshot()`, for torch's viewers and for mosaic.

Those viewers replay the trace backwards from the blocks of the end. A move of pages is an unmap and a map.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from oarlock.memory.events import Action, BlockState, Mark, Recording
from oarlock.memory.intervals import intervals
from oarlock.memory.mapped import joined_ranges

_MOST_EVENTS = 500_000  # what the viewers can hold
_STATES = {BlockState.LIVE: "active_allocated", BlockState.PENDING: "active_pending_free"}
_SMALL = 1 << 20
_CONSTANT = {"pool_id": (0, 0), "device": 0, "compile_context": "N/A", "user_metadata": ""}


def write_torch_snapshot(recording: Recording, path: str | os.PathLike[str]) -> Path:
    """Writes the pickle of :func:`torch_snapshot`, whole or not at all."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with open(unfinished, "wb") as file:
            pickle.dump(torch_snapshot(recording), file)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return target


def torch_snapshot(recording: Recording) -> dict[str, Any]:
    """The recording as torch's dictionary: segments with their blocks, and the trace of device 0.

    Returns:
        containers, numbers and strings only. Of a long recording the last 500,000 events are there.
    """
    blocks = recording.blocks
    asleep = bool((blocks["detail"] == 1).any())
    told = np.isin(recording.events["action"], (Action.MAP, Action.UNMAP)).any()
    frames = [
        [{"filename": f.filename, "line": f.line, "name": f.name} for f in recording.stack(number)]
        for number in range(len(recording.stacks))
    ]
    is_mapped = bool(told or (blocks["state"] == BlockState.FREE).any()) and not asleep
    segments = _mapped_segments(recording, frames) if is_mapped else _spanned_segments(recording, frames)
    return {
        "segments": segments,
        "device_traces": [_trace(recording, frames, with_pages=is_mapped)],
        "allocator_settings": {"expandable_segments": is_mapped},
        "external_annotations": _annotations(recording),
    }


def _segment(addr: int, size: int, blocks: list[dict[str, Any]], *, expandable: bool) -> dict[str, Any]:
    active = sum(block["size"] for block in blocks if block["state"] != "inactive")
    allocated = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    return {
        "device": 0,
        "address": addr,
        "total_size": size,
        "allocated_size": allocated,
        "active_size": active,
        "requested_size": sum(block["requested_size"] for block in blocks),
        "stream": 0,
        "segment_type": "small" if size <= 2 * _SMALL else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": expandable,
        "frames": [],
        "blocks": blocks,
    }


def _block(addr: int, size: int, requested: int, state: str, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"address": addr, "size": size, "requested_size": requested, "state": state, "frames": frames}


def _mapped_segments(recording: Recording, frames: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Runs of blocks that have memory, whatever they belong to: no map may cross from one segment to another."""
    segments: list[dict[str, Any]] = []
    run: list[dict[str, Any]] = []
    for addr, size, requested, stack, _name, _tag, _stream, state, _detail in recording.blocks.tolist():
        if state == BlockState.HOLE:
            continue
        if run and run[-1]["address"] + run[-1]["size"] != addr:
            segments.append(_segment(run[0]["address"], _length(run), run, expandable=True))
            run = []
        run.append(_block(addr, size, requested, _STATES.get(state, "inactive"), frames[stack]))
    if run:
        segments.append(_segment(run[0]["address"], _length(run), run, expandable=True))
    return segments


def _length(run: list[dict[str, Any]]) -> int:
    return run[-1]["address"] + run[-1]["size"] - run[0]["address"]


def _spanned_segments(recording: Recording, frames: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Where nothing is known of pages: the ranges that allocations ever lay in, as if they had always been there."""
    lives = intervals(recording)
    starts, lengths = joined_ranges(lives.addr, lives.size)
    at = lives.live_at(lives.num_events - 1) if lives.num_events else np.arange(len(lives))
    at = at[np.argsort(lives.addr[at], kind="stable")]
    segment_of = np.searchsorted(starts, lives.addr[at], side="right") - 1
    inside: list[list[dict[str, Any]]] = [[] for _ in range(starts.size)]
    for row, segment in zip(at.tolist(), segment_of.tolist(), strict=True):
        blocks, addr, size = inside[segment], int(lives.addr[row]), int(lives.size[row])
        end = blocks[-1]["address"] + blocks[-1]["size"] if blocks else int(starts[segment])
        if addr > end:
            blocks.append(_block(end, addr - end, 0, "inactive", []))
        state = "active_pending_free" if lives.freed[row] < lives.end[row] else "active_allocated"
        blocks.append(_block(addr, size, size, state, frames[int(lives.stack[row])]))
    segments = []
    for start, length, blocks in zip(starts.tolist(), lengths.tolist(), inside, strict=True):
        end = blocks[-1]["address"] + blocks[-1]["size"] if blocks else start
        if end < start + length:
            blocks.append(_block(end, start + length - end, 0, "inactive", []))
        segments.append(_segment(start, length, blocks, expandable=False))
    return segments


def _trace(recording: Recording, frames: list[list[dict[str, Any]]], *, with_pages: bool) -> list[dict[str, Any]]:
    trace: list[dict[str, Any]] = []
    last = [0]
    waiting: set[int] = set()

    def add(action: str, t_ns: int, addr: int, size: int, stack: int, stream: int, **more: object) -> None:
        last[0] = max(last[0], t_ns // 1000)
        entry = {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": last[0]}
        trace.append({**entry, "frames": frames[stack], **_CONSTANT, **more})

    events = recording.events[-_MOST_EVENTS:]
    for t_ns, addr, size, stack, _name, _tag, stream, action, _detail in events.tolist():
        handle = recording.streams[stream]
        if action == Action.ALLOC:
            add("alloc", t_ns, addr, size, stack, handle)
        elif action == Action.FREE_REQUESTED:
            waiting.add(addr)
            add("free_requested", t_ns, addr, size, stack, handle)
        elif action == Action.FREE_COMPLETED:
            if addr not in waiting:
                add("free_requested", t_ns, addr, size, stack, handle)
            waiting.discard(addr)
            add("free_completed", t_ns, addr, size, stack, handle)
        elif action in (Action.MAP, Action.UNMAP) and with_pages:
            add("segment_map" if action == Action.MAP else "segment_unmap", t_ns, addr, size, stack, 0)
        elif action == Action.OOM:
            add("oom", t_ns, 0, size, stack, handle, device_free=0)
    add("snapshot", int(events["t_ns"][-1]) if events.size else 0, 0, 0, 0, 0)
    return trace


def _annotations(recording: Recording) -> list[dict[str, Any]]:
    stages = {Mark.BEGIN: "START", Mark.END: "END"}
    events = recording.events[-_MOST_EVENTS:]
    events = events[(events["action"] == Action.ANNOTATION) & np.isin(events["detail"], (Mark.BEGIN, Mark.END))]
    return [
        {"stage": stages[Mark(detail)], "name": recording.names[name], "device": 0, "time_us": t_ns // 1000}
        for t_ns, _addr, _size, _stack, name, _tag, _stream, _action, detail in events.tolist()
    ]
