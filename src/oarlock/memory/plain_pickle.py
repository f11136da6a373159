"""Reads a pickle of plain containers, piece by piece, without running anything and without holding all of it.

Only None, numbers, strings, lists, tuples and dictionaries are admitted: an instruction that imports, calls or builds
anything else ends the reading. A dictionary or list that is complete may be replaced by something smaller at once, so a
file of gigabytes needs memory only for what is kept of it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

_CHUNK = 1 << 22
_LONGEST_TEXT = 1 << 26
_MOST_DEPTH = 64
_MOST_WAITING = 1_000_000
_CODE = {
    **dict.fromkeys(b"c\x93iob\x81\x92R", "imports or calls code"),
    **dict.fromkeys(b"PQ\x82\x83\x84", "refers to objects outside of the file"),
    **dict.fromkeys(b"\x8f\x90\x91", "holds a set"),
}
_INT4, _UINT2, _UINT4, _UINT8 = (struct.Struct(code).unpack_from for code in ("<i", "<H", "<I", "<Q"))
_FLOAT = struct.Struct(">d").unpack_from


# A dictionary without others inside, whose keys were seen before, as one match: traces consist of those. The first byte
# of each token says how long it is, so a match is the only way to read the bytes.
_REFERENCE = rb"(?:h.|j.{4})"
_INTEGER = rb"(?:K.|M..|J.{4}|\x8a(?:\0|" + rb"|".join(b"\\x%02x.{%d}" % (n, n) for n in range(1, 10)) + rb"))"
_SHORT_TEXT = rb"\x8c(?:\0|" + rb"|".join(b"\\x%02x.{%d}" % (n, n) for n in range(1, 32)) + rb")"
_REFERENCES = rb"\]\x94?+(?:\(" + _REFERENCE + rb"++e|" + _REFERENCE + rb"a)?+"
_PAIR_OF_INTEGERS = _INTEGER + _INTEGER + rb"\x86"
_VALUES = (_REFERENCE, _PAIR_OF_INTEGERS, _INTEGER, _REFERENCES, _SHORT_TEXT, rb"[N\x88\x89)]")
_VALUE = b"(?:" + b"|".join(_VALUES) + b")"
_FLAT_DICT = re.compile(rb"\}\x94\((?:" + _REFERENCE + _VALUE + rb"\x94?+)++u", re.DOTALL)
_INTEGERS, _REFERENCE_TOKENS = re.compile(_INTEGER, re.DOTALL), re.compile(_REFERENCE, re.DOTALL)
_ENTRY = re.compile(b"(" + _REFERENCE + b")(" + _VALUE + rb")(\x94?+)", re.DOTALL)


class PickleError(ValueError):
    """A file that is no pickle of plain containers; the message says where and why."""


class PlainDict(dict[Any, Any]):
    """A dictionary that is being read; `row` is its place in the memo, -1 if it has none."""

    __slots__ = ("row",)


class PlainList(list[Any]):
    """A list that is being read, see :class:`PlainDict`; `token` is for whoever reads."""

    __slots__ = ("row", "token")

    def __init__(self) -> None:
        super().__init__()
        self.row = -1
        self.token: Any = None


class PlainReader:
    """Reads one pickle.

    Args:
        file: opened for reading, binary.
        done: called with each dictionary once entries have been added to it; what it returns stands in its place from
            then on, also for later references to it. A dictionary comes again if the file adds to it in several steps,
            as pickles do for more than a thousand entries.
    """

    def __init__(self, file: BinaryIO, done: Callable[[PlainDict], Any]) -> None:
        self._file, self._done = file, done
        self._buffer, self._at, self._before = b"", 0, 0
        self.memo: list[Any] = []
        self._texts: dict[Any, Any] = {}
        self._known: dict[bytes, Any] = {}  # values by their bytes

    def _more(self, needed: int) -> None:
        """At least so many bytes behind the place where the reading is."""
        self._before += self._at
        parts = [self._buffer[self._at :]]
        size = len(parts[0])
        while size < needed or size <= 16:
            part = self._file.read(max(_CHUNK, needed - size))
            if not part:
                if size >= needed:
                    break
                raise PickleError("the file ends in the middle")
            parts.append(part)
            size += len(part)
        self._buffer, self._at = b"".join(parts), 0

    def _take(self, size: int) -> bytes:
        if size > _LONGEST_TEXT:
            raise PickleError(f"byte {self._before + self._at}: a text or number of {size} bytes")
        if self._at + size > len(self._buffer):
            self._more(size)
        taken = self._buffer[self._at : self._at + size]
        self._at += size
        return taken

    def _text(self, size: int) -> str:
        text = self._take(size).decode("utf-8", "replace")
        return self._texts.setdefault(text, text) if size <= 4096 and len(self._texts) < 1_000_000 else text

    def read(self) -> Any:
        """The object.

        Raises:
            PickleError: damaged, cut off, or not of plain containers.
        """
        try:
            return self._run()
        except (IndexError, struct.error, TypeError, AttributeError) as error:
            raise PickleError(f"damaged at byte {self._before + self._at}: {error}") from error

    def _run(self) -> Any:
        stack: list[Any] = []
        marks: list[list[Any]] = []
        memo, done = self.memo, self._done
        append = stack.append
        while True:
            if self._at + 16 > len(self._buffer):
                self._more(1)
                if len(stack) > _MOST_WAITING:
                    raise PickleError(f"byte {self._before}: {len(stack)} objects that no container takes up")
            buffer, at = self._buffer, self._at
            op = buffer[at]
            self._at = at = at + 1
            # The order is that of their frequency in snapshots.
            if op == 0x68:  # h BINGET
                append(memo[buffer[at]])
                self._at = at + 1
            elif op == 0x6A:  # j LONG_BINGET
                append(memo[_UINT4(buffer, at)[0]])
                self._at = at + 4
            elif op == 0x94:  # MEMOIZE
                value = stack[-1]
                if type(value) is PlainDict or type(value) is PlainList:
                    value.row = len(memo)
                memo.append(value)
            elif op == 0x4B:  # K BININT1
                append(buffer[at])
                self._at = at + 1
            elif op == 0x4D:  # M BININT2
                append(_UINT2(buffer, at)[0])
                self._at = at + 2
            elif op == 0x4A:  # J BININT
                append(_INT4(buffer, at)[0])
                self._at = at + 4
            elif op == 0x8A:  # LONG1
                append(int.from_bytes(self._take(self._take(1)[0]), "little", signed=True))
            elif op == 0x28:  # ( MARK
                if len(marks) >= _MOST_DEPTH:
                    raise PickleError(f"byte {self._before + at}: containers in containers, {_MOST_DEPTH} deep")
                marks.append(stack)
                stack = []
                append = stack.append
            elif op == 0x75:  # u SETITEMS
                items, stack = stack, marks.pop()
                append = stack.append
                target = stack[-1]
                for i in range(0, len(items), 2):
                    target[items[i]] = items[i + 1]
                stack[-1] = self._replaced(target, done(target))
            elif op == 0x73:  # s SETITEM
                value, key = stack.pop(), stack.pop()
                target = stack[-1]
                target[key] = value
                stack[-1] = self._replaced(target, done(target))
            elif op == 0x7D and (flat := _FLAT_DICT.match(buffer, at - 1)) is not None:
                append(self._flat(flat))
            elif op == 0x7D:  # } EMPTY_DICT
                made = PlainDict()
                made.row = -1
                append(made)
            elif op == 0x5D:  # ] EMPTY_LIST
                append(PlainList())
            elif op == 0x65:  # e APPENDS
                items, stack = stack, marks.pop()
                append = stack.append
                stack[-1].extend(items)
            elif op == 0x61:  # a APPEND
                value = stack.pop()
                stack[-1].append(value)
            elif op == 0x8C:  # SHORT_BINUNICODE
                append(self._text(self._take(1)[0]))
            elif op == 0x58:  # X BINUNICODE
                append(self._text(_UINT4(self._take(4), 0)[0]))
            elif op == 0x8D:  # BINUNICODE8
                append(self._text(_UINT8(self._take(8), 0)[0]))
            elif 0x85 <= op <= 0x87:  # TUPLE1 .. TUPLE3
                count = op - 0x84
                stack[-count:] = [self._tuple(tuple(stack[len(stack) - count :]))]
            elif op == 0x29:  # ) EMPTY_TUPLE
                append(())
            elif op == 0x74:  # t TUPLE
                items, stack = stack, marks.pop()
                append = stack.append
                append(self._tuple(tuple(items)))
            elif op == 0x4E:  # N NONE
                append(None)
            elif op in (0x88, 0x89):  # NEWTRUE, NEWFALSE
                append(op == 0x88)
            elif op == 0x47:  # G BINFLOAT
                append(_FLOAT(self._take(8), 0)[0])
            elif op == 0x8B:  # LONG4
                append(int.from_bytes(self._take(_UINT4(self._take(4), 0)[0]), "little", signed=True))
            elif op in (0x43, 0x42):  # SHORT_BINBYTES, BINBYTES
                append(self._take(self._take(1)[0] if op == 0x43 else _UINT4(self._take(4), 0)[0]))
            elif op in (0x71, 0x72):  # BINPUT, LONG_BINPUT: in the order of their numbers
                row = self._take(1)[0] if op == 0x71 else _UINT4(self._take(4), 0)[0]
                if row != len(memo):
                    raise PickleError(f"byte {self._before + at}: an entry of the memo out of order")
                value = stack[-1]
                if type(value) is PlainDict or type(value) is PlainList:
                    value.row = row
                memo.append(value)
            elif op == 0x95:  # FRAME
                self._take(8)
            elif op == 0x80:  # PROTO
                if self._take(1)[0] > 5:
                    raise PickleError("a pickle of a later protocol than 5")
            elif op == 0x2E:  # . STOP
                if marks or len(stack) != 1:
                    raise PickleError(f"byte {self._before + at}: it stops inside a container")
                return stack[0]
            else:
                why = _CODE.get(op, "has an instruction that plain containers do not need")
                raise PickleError(f"byte {self._before + at - 1}: it {why} ({bytes([op])!r}); nothing was run")

    def _flat(self, match: re.Match[bytes]) -> Any:
        """The dictionary that the match is, read as the instructions one by one would be."""
        memo, known, made = self.memo, self._known, PlainDict()
        made.row = len(memo)
        memo.append(made)
        for key, data, memoized in _ENTRY.findall(match.string, match.start() + 3, match.end() - 1):
            value = known.get(data)
            if value is None:
                value = self._value(data)
                if data[0] != 0x8A and len(known) < 1_000_000:  # not addresses and times
                    known[data] = value
            if memoized or data[:2] == b"]\x94":
                memo.append(value)
            name = known.get(key)
            if name is None:
                name = known[key] = self._value(key)
            made[name] = value
        self._at = match.end()
        return self._replaced(made, self._done(made))

    def _value(self, data: bytes) -> Any:
        """The value of a token of `_FLAT_DICT`. Equal lists of references are one list."""
        op = data[0]
        if op == 0x68:
            return self.memo[data[1]]
        if op == 0x6A:
            return self.memo[_UINT4(data, 1)[0]]
        if data[-1] == 0x86 and op in b"KMJ\x8a":
            first, second = (_integer(part) for part in _INTEGERS.findall(data))
            return self._tuple((first, second))
        if op in b"KMJ\x8a":
            return _integer(data)
        if op == 0x5D:
            made = PlainList()
            made.row = len(self.memo)
            made.extend(map(self._value, _REFERENCE_TOKENS.findall(data, 3 if data[1:2] == b"\x94" else 2)))
            return made
        if op == 0x8C:
            text = data[2:].decode("utf-8", "replace")
            return self._texts.setdefault(text, text)
        return {0x4E: None, 0x88: True, 0x89: False, 0x29: ()}[op]

    def _replaced(self, target: Any, value: Any) -> Any:
        if value is not target and target.row >= 0:
            self.memo[target.row] = value
        return value

    def _tuple(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """Equal small tuples of numbers are one object."""
        if len(value) <= 2 and all(type(item) is int for item in value):
            return self._texts.setdefault(value, value)
        return value


def _integer(data: bytes) -> int:
    if data[0] == 0x4B:
        return data[1]
    if data[0] == 0x4D:
        return _UINT2(data, 1)[0]
    return _INT4(data, 1)[0] if data[0] == 0x4A else int.from_bytes(data[2:], "little", signed=True)
