"""What happened to memory, event by event with addresses: the format that recorders fill and that views read.

An event is 40 bytes:

| field  | dtype  | meaning                                                                                            |
|--------|--------|----------------------------------------------------------------------------------------------------|
| t_ns   | int64  | nanoseconds of one monotonic clock                                                                 |
| addr   | uint64 | first address; 0 where the event has none                                                          |
| size   | uint64 | bytes; of OOM: that were asked for                                                                 |
| stack  | uint32 | number of the Python stack in `stacks`, 0: none                                                    |
| name   | uint32 | row of `names`, 0: none                                                                            |
| tag    | uint32 | of a pool                                                                                          |
| stream | uint16 | row of `streams`                                                                                   |
| action | uint8  | :class:`Action`                                                                                    |
| detail | uint8  | ALLOC, FREE: 1 during a backward pass; MAP, UNMAP: 1 of pages that change place in the pool;       |
|        |        | ANNOTATION: :class:`Mark`                                                                          |

A file is a zip of ``.npy`` arrays (``numpy.load`` opens it; nothing is pickled).
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oarlock.stacks import Frame, outside_torch

EVENT = np.dtype(
    [
        *(("t_ns", "<i8"), ("addr", "<u8"), ("size", "<u8"), ("stack", "<u4"), ("name", "<u4")),
        *(("tag", "<u4"), ("stream", "<u2"), ("action", "u1"), ("detail", "u1")),
    ]
)
BLOCK = np.dtype(
    [
        *(("addr", "<u8"), ("size", "<u8"), ("requested", "<u8"), ("stack", "<u4"), ("name", "<u4")),
        *(("tag", "<u4"), ("stream", "<u2"), ("state", "u1"), ("detail", "u1")),
    ]
)
"""A block at the end of a recording: `state` is a :class:`BlockState`, `detail` 1 where no memory is behind it."""

_VERSION = 1


@contextlib.contextmanager
def open_arrays(path: str | os.PathLike[str]) -> Iterator[np.lib.npyio.NpzFile]:
    """The arrays of a zip, without unpickling.

    Raises:
        ValueError: the file is no zip.
    """
    with open(path, "rb") as opened:
        if opened.read(2) != b"PK":
            raise ValueError("it does not begin as a .npz file does")
        opened.seek(0)
        with np.load(opened, allow_pickle=False) as file:
            yield file


class Action(enum.IntEnum):
    """What happened."""

    ALLOC = 0
    FREE_REQUESTED = 1  # the program has freed it; streams may still use it
    FREE_COMPLETED = 2  # anybody may have it
    MAP = 3  # memory has come to these addresses
    UNMAP = 4
    OOM = 5
    ANNOTATION = 6


class Mark(enum.IntEnum):
    """What an ANNOTATION is: a moment, the begin or end of a region, or the name of the block at `addr`."""

    MOMENT = 0
    BEGIN = 1
    END = 2
    BLOCK = 3


class BlockState(enum.IntEnum):
    """Of a block at the end."""

    LIVE = 0
    FREE = 1
    HOLE = 2  # addresses without memory
    PENDING = 3  # freed, but streams or pins keep it
    LOST = 4


@dataclasses.dataclass(frozen=True)
class Recording:
    """Events in order, and the blocks after the last of them.

    Attributes:
        events: [N] EVENT.
        blocks: [M] BLOCK, in the order of addresses.
        frames: levels of stacks.
        stacks: rows of `frames`, innermost first; stack 0 is empty.
        names: of regions, tensors and operations; name 0 is "".
        streams: handles; stream 0 is the first of them.
        source: what was recorded, for people.
        num_dropped: events that came before the first one and are lost.
        capacity: bytes, 0 where unknown.
        page_bytes: of a pool, else 0.
        tags: what tags stand for, e.g. {1: "parameter"}.
        settings: of the allocator.
    """

    events: NDArray[Any]
    blocks: NDArray[Any]
    frames: Sequence[Frame] = ()
    stacks: Sequence[Sequence[int]] = ((),)
    names: Sequence[str] = ("",)
    streams: Sequence[int] = (0,)
    source: str = ""
    num_dropped: int = 0
    capacity: int = 0
    page_bytes: int = 0
    tags: Mapping[int, str] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse numbers that name nothing."""
        for name, column, dtype in (("events", self.events, EVENT), ("blocks", self.blocks, BLOCK)):
            if column.dtype != dtype or column.ndim != 1:
                raise ValueError(f"{name} must be [N] of the format in oarlock.memory.events, got {column.dtype}")
            for field, table in (("stack", self.stacks), ("name", self.names), ("stream", self.streams)):
                if column.size and int(column[field].max()) >= len(table):
                    raise ValueError(f"{name} refer to {field} {int(column[field].max())}, there are {len(table)}")

    def __len__(self) -> int:
        return self.events.size

    def stack(self, number: int) -> list[Frame]:
        """The levels of a stack, innermost first."""
        return [self.frames[i] for i in self.stacks[number]]

    def place(self, number: int) -> str:
        """file:line of the innermost level of a stack outside torch; "" without a stack."""
        level = outside_torch(self.stack(number))
        return f"{Path(level.filename).name}:{level.line} {level.name}" if level else ""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the file whole or not at all."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}.{os.getpid()}")
        depths = np.array([len(stack) for stack in self.stacks], np.int64)
        levels = np.array([level for stack in self.stacks for level in stack], np.uint32)
        facts = {
            "version": _VERSION,
            **{name: getattr(self, name) for name in ("source", "num_dropped", "capacity", "page_bytes")},
            **{name: list(getattr(self, name)) for name in ("frames", "names", "streams")},
            "tags": {str(tag): name for tag, name in self.tags.items()},
            "settings": dict(self.settings),
        }
        text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        try:
            with open(unfinished, "wb") as file:
                np.savez_compressed(
                    file, events=self.events, blocks=self.blocks, depths=depths, levels=levels, facts=text
                )
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recording:
        """Reads a file of :meth:`save`.

        Raises:
            ValueError: not such a file, or one of a later version.
        """
        try:
            with open_arrays(path) as file:
                if missing := {"events", "blocks", "depths", "levels", "facts"} - set(file.files):
                    if {"action", "id", "size"} <= set(file.files):
                        raise ValueError("it is a trace of allocations, which `oarlock memory replay` reads")
                    raise ValueError(f"it lacks {', '.join(sorted(missing))}")
                facts = json.loads(file["facts"].tobytes())
                if facts.pop("version") != _VERSION:
                    raise ValueError(f"its version is not {_VERSION}")
                ends = np.cumsum(file["depths"]).tolist()
                levels = file["levels"].tolist()
                stacks = [tuple(levels[a:b]) for a, b in pairwise([0, *ends])]
                facts["frames"] = [Frame(*frame) for frame in facts["frames"]]
                facts["tags"] = {int(tag): name for tag, name in facts["tags"].items()}
                return cls(events=file["events"], blocks=file["blocks"], stacks=stacks, **facts)
        except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, AttributeError) as error:
            raise ValueError(f"{os.fspath(path)} is not a recording of memory: {error}") from error
