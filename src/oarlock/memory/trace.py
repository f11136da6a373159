"""Traces of allocations: what a program asked of its allocator, in order, as columns that NumPy keeps in one file.

The file is a zip of ``.npy`` arrays (``numpy.load`` opens it; nothing is pickled):

| array    | dtype  | shape | meaning                                                                            |
|----------|--------|-------|------------------------------------------------------------------------------------|
| version  | int64  | []    | 1                                                                                  |
| action   | uint8  | [N]   | 0: allocate, 1: free, 2: another stream uses it                                    |
| id       | uint32 | [N]   | of the allocation, counted from 0 in the order of the allocations                  |
| size     | int64  | [N]   | bytes, where the action is 0; else 0                                               |
| stream   | uint32 | [N]   | that the allocation or free happens on, or that uses it                            |
| label    | uint16 | [N]   | row of `labels`: the part of the program                                           |
| labels   | str    | [L]   | names                                                                              |
"""

from __future__ import annotations

import dataclasses
import os
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oarlock.memory.events import Action, Recording, open_arrays
from oarlock.memory.intervals import intervals

ALLOCATE, FREE, USE = 0, 1, 2
_COLUMNS = {"action": np.uint8, "id": np.uint32, "size": np.int64, "stream": np.uint32, "label": np.uint16}
_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Trace:
    """N events in order; see the module for the columns.

    Raises:
        ValueError: columns that contradict each other; the message names the first such event.
    """

    action: NDArray[np.uint8]
    id: NDArray[np.uint32]
    size: NDArray[np.int64]
    stream: NDArray[np.uint32]
    label: NDArray[np.uint16]
    labels: tuple[str, ...] = ("",)

    def __post_init__(self) -> None:
        for name, dtype in _COLUMNS.items():
            column = getattr(self, name)
            if column.dtype != dtype or column.shape != self.action.shape or column.ndim != 1:
                raise ValueError(
                    f"column {name} must be {np.dtype(dtype)} [{self.action.size}], got {column.dtype} {column.shape}"
                )
        self._check_events()

    def _check_events(self) -> None:
        allocates, frees = self.action == ALLOCATE, self.action == FREE
        born, died = np.flatnonzero(allocates), np.flatnonzero(frees)
        self._refuse(self.action > USE, "has an action that is none of 0, 1, 2")
        self._refuse(allocates & (self.size <= 0), "allocates no bytes")
        self._refuse(self.label >= len(self.labels), "has a label without a name")
        expected = np.zeros(self.id.size, np.uint32)
        expected[born] = np.arange(born.size)
        self._refuse(allocates & (self.id != expected), "does not count its allocation on")
        self._refuse(self.id >= born.size, "names an allocation that never happens")
        end = np.full(born.size, self.id.size)
        end[self.id[died][::-1]] = died[::-1]  # the first free counts
        index = np.arange(self.id.size)
        self._refuse(~allocates & (index < born[self.id]), "comes before its allocation")
        self._refuse(~allocates & (index > end[self.id]), "comes after its free")

    def _refuse(self, wrong: NDArray[np.bool_], why: str) -> None:
        if wrong.any():
            raise ValueError(f"event {int(np.argmax(wrong))} of {wrong.size} {why}")

    def __len__(self) -> int:
        return self.action.size

    def live_bytes(self, granularity: int = 512) -> NDArray[np.int64]:
        """[N] bytes that are allocated after each event, each allocation rounded up to `granularity`."""
        rounded = (self.size + granularity - 1) // granularity * granularity
        sizes = rounded[self.action == ALLOCATE]
        change = np.where(self.action == FREE, -sizes[self.id], rounded) if sizes.size else rounded
        return np.cumsum(np.where(self.action == USE, 0, change))

    def peak_bytes(self, granularity: int = 512) -> int:
        """The most that is allocated at once, rounded as in :meth:`live_bytes`; 0 for an empty trace."""
        return int(self.live_bytes(granularity).max(initial=0))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file whole or not at all."""
        target = Path(path)
        unfinished = target.with_name(f"{target.name}.{os.getpid()}")
        columns = {name: getattr(self, name) for name in _COLUMNS}
        try:
            with open(unfinished, "wb") as file:
                np.savez_compressed(file, version=np.int64(_VERSION), labels=np.array(self.labels), **columns)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)

    @classmethod
    def of(cls, recording: Recording) -> Trace:
        """The allocations and frees of a recording.

        What was there before its first event counts as allocated at the start; what came and went before that is not
        in it.
        """
        lives, events = intervals(recording), recording.events
        born = np.flatnonzero(lives.size > 0)
        born = born[np.argsort(lives.begin[born], kind="stable")]
        died = np.flatnonzero(lives.freed[born] < lives.num_events)
        at = lives.freed[born[died]]
        # A free that was lost is that of the next allocation at the address, and comes right before it.
        told = np.isin(events["action"][at], (Action.FREE_REQUESTED, Action.FREE_COMPLETED))
        told &= events["addr"][at].astype(np.int64) == lives.addr[born[died]]
        free_stream = np.where(told, events["stream"][at], lives.stream[born[died]])
        order = np.lexsort(
            (np.repeat([ALLOCATE, -FREE], [born.size, died.size]), np.concatenate([lives.begin[born], at]))
        )
        zeros = np.zeros(died.size, np.int64)
        kinds = np.repeat([ALLOCATE, FREE], [born.size, died.size])[order]
        ids = np.concatenate([np.arange(born.size), died])[order]
        sizes = np.concatenate([lives.size[born], zeros])[order]
        streams = np.concatenate([lives.stream[born], free_stream])[order]
        return cls(
            kinds.astype(np.uint8),
            ids.astype(np.uint32),
            sizes.astype(np.int64),
            streams.astype(np.uint32),
            np.zeros(kinds.size, np.uint16),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Reads a file of :meth:`save`, or of :meth:`Recording.save`.

        Raises:
            ValueError: not such a file, or one of a later version.
        """
        try:
            with open_arrays(path) as file:
                if "events" in file.files:
                    return cls.of(Recording.load(path))
                missing = {"version", "labels", *_COLUMNS} - set(file.files)
                if missing:
                    raise ValueError(f"it lacks {', '.join(sorted(missing))}")
                if int(file["version"]) != _VERSION:
                    raise ValueError(f"its version is {int(file['version'])}, this program reads {_VERSION}")
                return cls(**{name: file[name] for name in _COLUMNS}, labels=tuple(map(str, file["labels"])))
        except (ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:
            raise ValueError(f"{os.fspath(path)} is not a trace of allocations: {error}") from error
