"""Snapshots of `torch.cuda.memory` as recordings, in bounded memory whatever their size."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oarlock.memory.events import BLOCK, EVENT, Action, BlockState, Mark, Recording
from oarlock.memory.plain_pickle import PickleError, PlainDict, PlainList, PlainReader
from oarlock.stacks import Frame

_ACTIONS = {
    "alloc": Action.ALLOC,
    "free_requested": Action.FREE_REQUESTED,
    "free_completed": Action.FREE_COMPLETED,
    "free": Action.FREE_COMPLETED,
    "segment_alloc": Action.MAP,
    "segment_map": Action.MAP,
    "segment_free": Action.UNMAP,
    "segment_unmap": Action.UNMAP,
    "oom": Action.OOM,
}
_STATES = {
    "active_allocated": BlockState.LIVE,
    "active_pending_free": BlockState.PENDING,
    "active_awaiting_free": BlockState.PENDING,
    "inactive": BlockState.FREE,
}
_CHUNK = 1 << 16
_ADDRESS = (1 << 64) - 1


class _Frame(int):
    """A row of the table of frames, in place of the dictionary."""


class _Stack(int):
    """A row of the table of stacks, in place of the list of frames."""


class _Rows(int):
    """Where entries of the trace or blocks were put; the count is kept by their list."""


_ENTRY, _BLOCK = _Rows(0), _Rows(1)


def read_torch_snapshot(path: str | os.PathLike[str], *, device: int | None = None) -> Recording:
    """Reads a snapshot that `torch.cuda.memory._dump_snapshot` or :func:`write_torch_snapshot` has written.

    Args:
        path: the pickle; nothing in it is run.
        device: number of the device; the one with most events if None.

    Raises:
        ValueError: not such a file, a damaged one, or no such device in it.
    """
    collected = _Collector()
    with open(path, "rb") as file:
        reader = PlainReader(file, collected.done)
        collected.reader = reader
        try:
            top = reader.read()
            reader.memo.clear()
            return collected.recording(top, device, Path(path).name)
        except (PickleError, KeyError, TypeError, OverflowError) as error:
            why = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{os.fspath(path)} is not a snapshot of memory of torch: {why}") from error


class _Collector:
    """Takes each entry of the trace, block and frame as it is read."""

    def __init__(self) -> None:
        self.reader: PlainReader | None = None
        self.frames: dict[Frame, int] = {}
        self.stacks: dict[tuple[int, ...], int] = {(): 0}
        self.streams: dict[int, int] = {}
        self.names: dict[str, int] = {"": 0}
        self.chunks: list[NDArray[Any]] = []
        self.pending: list[tuple[int, ...]] = []
        self.blocks: list[tuple[int, ...]] = []

    def done(self, found: PlainDict) -> Any:
        if "filename" in found and "line" in found and "name" in found:
            frame = Frame(str(found["filename"]), int(found["line"]), str(found["name"]))
            return _Frame(self.frames.setdefault(frame, len(self.frames)))
        if "action" in found and "addr" in found:
            self._entry(found)
            return _ENTRY
        if "state" in found and "size" in found and "blocks" not in found:
            self._block(found)
            return _BLOCK
        return found

    def _stack(self, frames: Any) -> int:
        """The number of a list of frames; the list itself is given up."""
        if isinstance(frames, _Stack):
            return int(frames)
        if isinstance(frames, PlainList) and frames.token is not None:
            return frames.token
        levels = tuple(int(frame) for frame in frames if isinstance(frame, _Frame))
        number = self.stacks.setdefault(levels, len(self.stacks))
        if isinstance(frames, PlainList):
            frames.token = number
            if frames.row >= 0 and self.reader is not None:
                self.reader.memo[frames.row] = _Stack(number)
        return number

    def _stream(self, handle: Any) -> int:
        row = self.streams.setdefault(int(handle or 0), len(self.streams))
        return min(row, (1 << 16) - 1)

    def _entry(self, found: PlainDict) -> None:
        action = _ACTIONS.get(found["action"])
        if action is None:
            name = self.names.setdefault(str(found["action"]), len(self.names))
            row = (0, 0, 0, name, 0, Action.ANNOTATION, Mark.MOMENT)
        else:
            size, addr = int(found["size"]), 0 if action == Action.OOM else int(found["addr"])
            stack = self._stack(found.get("frames") or ())
            row = (addr & _ADDRESS, size, stack, 0, self._stream(found.get("stream")), action, 0)
        addr, size, stack, name, stream, number, detail = row
        t_ns = int(found.get("time_us") or 0) * 1000
        self.pending.append((t_ns, addr, size, stack, name, 0, stream, int(number), int(detail)))
        if len(self.pending) >= _CHUNK:
            self._flush()

    def _flush(self) -> None:
        self.chunks.append(np.array(self.pending, EVENT))
        self.pending = []

    def _block(self, found: PlainDict) -> None:
        history = found.get("history") or ()
        frames = found.get("frames") or (history[0].get("frames") if history else None) or ()
        state = _STATES.get(found["state"])
        if state is None:
            raise PickleError(f"a block is in the state {found['state']!r}")
        size = int(found["size"])
        address = int(found.get("address", found.get("addr", -1)))
        requested = int(found.get("requested_size", size)) if state != BlockState.FREE else 0
        self.blocks.append((address, size, requested, self._stack(frames), 0, 0, 0, int(state), 0))

    def recording(self, top: Any, device: int | None, name: str) -> Recording:
        self._flush()
        segments = top["segments"]
        traces = top.get("device_traces", [])
        counts = [len(trace) for trace in traces]
        used = sorted({int(segment["device"]) for segment in segments})
        if device is None:
            device = int(np.argmax(counts)) if any(counts) else (used[0] if used else 0)
        if device not in used and not (0 <= device < len(counts) and counts[device]):
            known = sorted({*used, *(i for i, count in enumerate(counts) if count)})
            raise PickleError(f"nothing is told of device {device}, but of {', '.join(map(str, known)) or 'none'}")
        events = np.empty(sum(map(len, self.chunks)), EVENT)
        end = events.size
        while self.chunks:  # each goes as soon as it is copied: there is no moment with all of them twice
            chunk = self.chunks.pop()
            end -= chunk.size
            events[end : end + chunk.size] = chunk
        if len(events) != sum(counts):
            raise PickleError(f"{sum(counts)} entries of traces, but {len(events)} of them tell what happened")
        before = sum(counts[:device]) if device < len(counts) else len(events)
        events = events[before : before + counts[device]] if device < len(counts) else events[:0]
        settings = top.get("allocator_settings")
        return Recording(
            events=events,
            blocks=self._blocks_of(segments, device),
            frames=list(self.frames),
            stacks=list(self.stacks),
            names=list(self.names),
            streams=list(self.streams)[: 1 << 16] or [0],
            source=f"{name}, device {device}",
            settings=dict(settings) if isinstance(settings, dict) else {},
        )

    def _blocks_of(self, segments: Any, device: int) -> NDArray[Any]:
        rows: list[tuple[int, ...]] = []
        first = 0
        for segment in segments:
            blocks = self.blocks[first : first + len(segment["blocks"])]
            first += len(blocks)
            if int(segment["device"]) != device:
                continue
            addr, stream = int(segment["address"]), self._stream(segment.get("stream"))
            for block in blocks:
                at = block[0] if block[0] >= 0 else addr
                rows.append((at, *block[1:6], stream, *block[7:]))
                addr = at + block[1]
        made = np.array(rows, BLOCK)
        return made[np.argsort(made["addr"], kind="stable")]
