"""Reading the pickles of Paddle without pickle: the opcodes that Paddle's files consist of, and no others.

A pickle is a program for a stack machine. This one makes plain values, and the few records of :mod:`.records`, in
bounded memory; bytes of tensors are not touched, only their place is noted. Whatever else a file names is refused.
"""

import struct
from collections.abc import Callable
from typing import Any

from oarlock.checkpoint.paddle.records import KNOWN, Array, Known, LocalTensorIndex, Malformed, Span

MAX_OBJECT_BYTES = 2 << 30
"""What the values of one file may take in memory, tensors aside; a million tensors take about half of it."""
_MAX_TEXT = 1 << 16
_MAX_STACK = 1 << 16
_MAX_DEPTH = 64
_HASHED_AT_ONCE = {str, int, bool, float}
_TOO_MUCH = "its values take more memory than those of any checkpoint; it is a bomb or damaged"


class Unpickler:
    """A program and where it stands.

    Args:
        data: the file's bytes.
        max_bytes: memory for the values.
    """

    def __init__(self, data: memoryview, max_bytes: int = MAX_OBJECT_BYTES) -> None:
        self._data = data
        self._position = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: list[Any] = []
        self._first = 0
        self._room = max_bytes
        self._spans: set[int] = set()

    def load(self) -> Any:
        """The value that the program makes.

        Raises:
            Malformed: it is no program of Paddle, or would make too much.
        """
        data, handlers, start = self._data, _HANDLERS, 0
        try:
            while True:
                start = self._position
                handler = handlers[data[start]]
                self._position = start + 1
                if handler is None:
                    break
                handler(self)
        except KeyError:
            problem = f"opcode 0x{data[start]:02x}, which paddle.save does not write"
            raise Malformed(f"byte {start}: {problem}") from None
        except (IndexError, struct.error):
            raise Malformed(f"byte {start}: the file ends early, or takes values that are not there") from None
        except Malformed as error:
            raise Malformed(f"byte {start}: {error}") from None
        if self._position != len(data):
            raise Malformed(f"byte {self._position}: {len(data) - self._position} bytes after the end")
        if len(self._stack) != 1:
            raise Malformed("several values")
        return self._stack[0]

    def _push(self, value: object, num_bytes: int) -> None:
        """Put a value that takes so much memory onto the stack."""
        self._room -= num_bytes + 8
        if self._room < 0:
            raise Malformed(_TOO_MUCH)
        if len(self._stack) >= _MAX_STACK:
            raise Malformed(f"a list of more than {_MAX_STACK} values at once, which pickle does not write")
        self._stack.append(value)

    def _charge(self, num_bytes: int) -> None:
        self._room -= num_bytes
        if self._room < 0:
            raise Malformed(_TOO_MUCH)

    def _take(self, num_bytes: int) -> tuple[int, int]:
        """The place of the next bytes."""
        start, stop = self._position, self._position + num_bytes
        if stop > len(self._data):
            raise Malformed(f"{num_bytes} bytes are announced, the file has {len(self._data) - start} more")
        self._position = stop
        return start, stop

    def _byte(self) -> int:
        value = self._data[self._position]
        self._position += 1
        return value

    def _number(self, form: struct.Struct) -> Any:
        start, _ = self._take(form.size)
        return form.unpack_from(self._data, start)[0]

    def _text(self, length: int, coding: str) -> None:
        start, stop = self._take(length)
        if length > _MAX_TEXT:
            self._push(Span(start, stop, coding == "utf-8"), 80)
            return
        try:
            text = str(self._data[start:stop], coding)
            self._push(text, 50 + length if text.isascii() else 80 + 4 * length)
        except UnicodeDecodeError as error:
            raise Malformed(f"text that is not {coding}: {error.reason}") from None

    def _bytes(self, length: int) -> None:
        start, stop = self._take(length)
        if length <= 16:  # a number of numpy, or what the constructor of an array gets
            self._push(bytes(self._data[start:stop]), 33 + length)
        else:
            self._push(Span(start, stop), 80)

    def _pop_to_mark(self) -> list[Any]:
        mark = self._marks.pop()
        items = self._stack[mark:]
        del self._stack[mark:]
        return items

    def _mark(self) -> None:
        if len(self._marks) >= _MAX_DEPTH:
            raise Malformed(f"values nested deeper than {_MAX_DEPTH}")
        self._marks.append(len(self._stack))

    def _pop(self) -> Any:
        if self._marks and self._marks[-1] == len(self._stack):
            raise IndexError
        return self._stack.pop()

    def _tuple(self, length: int) -> None:
        items = [self._pop() for _ in range(length)]
        self._push(tuple(reversed(items)), 40 + 8 * length)

    def _marked_tuple(self) -> None:
        items = self._pop_to_mark()
        self._push(tuple(items), 40 + 8 * len(items))

    def _append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise Malformed(f"items for a {type(target).__name__}")
        self._charge(8 * len(items))
        target.extend(items)

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise Malformed(f"items for a {type(target).__name__}")
        self._charge(60 * len(items))
        keys = items[::2]
        for kind in set(map(type, keys)) - _HASHED_AT_ONCE:  # hashing anything with parts could take for ever
            if kind is not LocalTensorIndex or not all(key.complete for key in keys if type(key) is kind):
                raise Malformed(f"a dict with a {kind.__name__} as key")
        target.update(zip(keys, items[1::2], strict=True))

    def _name(self, module: object, name: object) -> None:
        known = KNOWN.get((module, name)) if isinstance(module, str) and isinstance(name, str) else None
        if known is None:
            raise Malformed(f"it names {module!s:.100}.{name!s:.100}, which Paddle's checkpoints do not hold")
        self._push(known, 0)

    def _global(self) -> None:
        self._name(self._line(), self._line())

    def _line(self) -> str:
        head = bytes(self._data[self._position : self._position + 256])
        length = head.find(b"\n")
        if length < 0:
            raise Malformed("a name without an end")
        self._position += length + 1
        return head[:length].decode("utf-8", "replace")

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        self._name(module, name)

    def _reduce(self) -> None:
        arguments, function = self._pop(), self._pop()
        if not isinstance(function, Known) or function.call is None or type(arguments) is not tuple:
            raise Malformed(f"it calls a {getattr(function, 'name', type(function).__name__)}")
        try:
            self._push(function.call(*arguments), 200)
        except TypeError:
            raise Malformed(f"it calls {function.name} with {len(arguments)} arguments") from None

    def _new(self) -> None:
        arguments, kind = self._pop(), self._pop()
        if not isinstance(kind, Known) or kind.new is None or arguments != ():
            raise Malformed(f"it makes a {getattr(kind, 'name', type(kind).__name__)}")
        self._push(object.__new__(kind.new), 400)

    def _build(self) -> None:
        state, target = self._pop(), self._stack[-1]
        if isinstance(target, Known) or not hasattr(target, "build"):
            raise Malformed(f"a state for a {type(target).__name__}")
        target.build(state)
        if isinstance(target, Array) and isinstance(target.data, Span):
            if target.data.start in self._spans:
                raise Malformed("two arrays with the same bytes, which would multiply when they are read")
            self._spans.add(target.data.start)

    def _remember(self, index: int) -> None:
        """pickle numbers what it remembers one after the other; any other number could ask for any memory."""
        if not self._memo:
            self._first = min(index, 1)  # Python 2 counts from 1
        if index - self._first != len(self._memo):
            raise Malformed(f"value {len(self._memo)} is remembered as {index}")
        self._charge(8)
        self._memo.append(self._stack[-1])

    def _recall(self, index: int) -> None:
        if not 0 <= index - self._first < len(self._memo):
            raise Malformed(f"value {index} of {len(self._memo)} that are remembered")
        self._push(self._memo[index - self._first], 0)

    def _protocol(self) -> None:
        if (version := self._byte()) not in (2, 3, 4):
            raise Malformed(f"pickle protocol {version}; Paddle writes 2, 3 and 4")

    def _long(self) -> None:
        length = self._byte()
        if length > 9:
            raise Malformed(f"an integer of {length} bytes")
        start, stop = self._take(length)
        self._push(int.from_bytes(self._data[start:stop], "little", signed=True), 36)


_U2, _U4, _U8 = (struct.Struct(f"<{code}") for code in "HIQ")
_I4, _F8 = struct.Struct("<i"), struct.Struct(">d")

_HANDLERS: dict[int, Callable[[Unpickler], object] | None] = {
    ord(code): handler
    for code, handler in {
        ".": None,
        "\x80": Unpickler._protocol,
        "\x95": lambda m: m._take(8),  # a frame: how much to read at once
        "(": Unpickler._mark,
        "N": lambda m: m._push(None, 0),
        "\x88": lambda m: m._push(True, 0),
        "\x89": lambda m: m._push(False, 0),
        "K": lambda m: m._push(m._byte(), 0),
        "M": lambda m: m._push(m._number(_U2), 28),
        "J": lambda m: m._push(m._number(_I4), 28),
        "\x8a": Unpickler._long,
        "G": lambda m: m._push(m._number(_F8), 24),
        "X": lambda m: m._text(m._number(_U4), "utf-8"),
        "\x8c": lambda m: m._text(m._byte(), "utf-8"),
        "\x8d": lambda m: m._text(m._number(_U8), "utf-8"),
        "U": lambda m: m._text(m._byte(), "latin1"),  # of Python 2
        "T": lambda m: m._text(m._number(_U4), "latin1"),
        "B": lambda m: m._bytes(m._number(_U4)),
        "C": lambda m: m._bytes(m._byte()),
        "\x8e": lambda m: m._bytes(m._number(_U8)),
        ")": lambda m: m._tuple(0),
        "\x85": lambda m: m._tuple(1),
        "\x86": lambda m: m._tuple(2),
        "\x87": lambda m: m._tuple(3),
        "t": Unpickler._marked_tuple,
        "]": lambda m: m._push([], 64),
        "}": lambda m: m._push({}, 72),
        "a": lambda m: m._append([m._pop()]),
        "e": lambda m: m._append(m._pop_to_mark()),
        "s": lambda m: m._set([m._pop(), m._pop()][::-1]),
        "u": lambda m: m._set(m._pop_to_mark()),
        "c": Unpickler._global,
        "\x93": Unpickler._stack_global,
        "R": Unpickler._reduce,
        "\x81": Unpickler._new,
        "b": Unpickler._build,
        "q": lambda m: m._remember(m._byte()),
        "r": lambda m: m._remember(m._number(_U4)),
        "\x94": lambda m: m._remember(m._first + len(m._memo)),
        "h": lambda m: m._recall(m._byte()),
        "j": lambda m: m._recall(m._number(_U4)),
    }.items()
}
