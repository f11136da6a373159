"""Python call stacks, cheap to take and kept once each: a stack is a number.

stacks = StackTable()
number = stacks.capture()
for frame in stacks.frames(number):
    print(f"{frame.filename}:{frame.line} {frame.name}")
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import NamedTuple


class Frame(NamedTuple):
    """One level of a call stack: file, line (from 1), function."""

    filename: str
    line: int
    name: str


def outside_torch(frames: Iterable[Frame]) -> Frame | None:
    """The innermost level that is not torch's own, else the innermost; None of an empty stack."""
    levels = list(frames)
    own = (level for level in levels if "/torch/" not in level.filename and "::" not in level.name)
    return next(own, levels[0] if levels else None)


class StackTable:
    """Call stacks by number; 0 is the empty one. Threads may share a table.

    Taking a stack notes code and instruction of each level; files and lines are looked up only when it is read.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}
        self._stacks: list[tuple[tuple[CodeType, ...], tuple[int, ...]]] = [((), ())]
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._stacks)

    def capture(self, skip: int = 1) -> int:
        """The number of the stack of the calling thread.

        Args:
            skip: innermost levels left out; 1 leaves out the call of this method only.
        """
        innermost = frame = sys._getframe(skip)
        words: list[int] = []  # a code object's own hash looks at all of its contents, so its address stands for it
        add = words.append
        while frame is not None:
            add(id(frame.f_code))
            add(frame.f_lasti)
            frame = frame.f_back
        key = tuple(words)
        number = self._numbers.get(key)
        return self._add(key, innermost) if number is None else number

    def _add(self, key: tuple[int, ...], frame: FrameType | None) -> int:
        codes = []
        while frame is not None:
            codes.append(frame.f_code)
            frame = frame.f_back
        with self._lock:
            number = self._numbers.setdefault(key, len(self._stacks))
            if number == len(self._stacks):  # keeps the codes alive: their addresses are part of the key
                self._stacks.append((tuple(codes), key[1::2]))
        return number

    def frames(self, number: int) -> tuple[Frame, ...]:
        """The levels of a stack, innermost first."""
        return tuple(map(_frame, *self._stacks[number]))

    def export(self) -> tuple[list[Frame], list[tuple[int, ...]]]:
        """All stacks so far: different frames, and for each stack rows of them, innermost first."""
        rows: dict[Frame, int] = {}
        stacks = []
        for number in range(len(self)):
            stacks.append(tuple(rows.setdefault(frame, len(rows)) for frame in self.frames(number)))
        return list(rows), stacks


@functools.lru_cache(1 << 16)
def _frame(code: CodeType, instruction: int) -> Frame:
    line = next(itertools.islice(code.co_positions(), max(0, instruction // 2), None), (None,))[0]
    return Frame(code.co_filename, line or code.co_firstlineno, code.co_qualname)
