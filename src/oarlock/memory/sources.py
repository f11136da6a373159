"""What records memory at the moment, and marks that go to all of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from oarlock.memory.events import Mark, Recording


class Source(Protocol):
    """What records: a pool, or a recorder of tensors."""

    def num_events(self) -> int: ...
    def recording(self, since: int = 0) -> Recording: ...
    def annotate(self, name: str, mark: Mark = Mark.MOMENT) -> None: ...


sources: list[Source] = []


def enter_source(source: Source) -> None:
    """Makes a recorder the one that `region` asks by default."""
    sources.append(source)


def leave_source(source: Source) -> None:
    """Takes :meth:`enter_source` back."""
    if source in sources:
        sources.remove(source)


@contextmanager
def span(name: str) -> Iterator[None]:
    """Notes begin and end of a part of the program with everything that records; costs nothing where nothing does."""
    told = list(sources)
    for source in told:
        source.annotate(name, Mark.BEGIN)
    try:
        yield
    finally:
        for source in told:
            source.annotate(name, Mark.END)
