"""Notes what torch logs while it compiles (`TORCH_LOGS=graph_breaks,recompiles`), put in order."""

from __future__ import annotations

import logging
import re
import sys
from dataclasses import replace
from types import CodeType, TracebackType
from typing import Any, NamedTuple, Self

from torch._logging import _internal, set_logs  # pyright: ignore[reportPrivateImportUsage]

from oarlock.compile.report import Break, Recompile, Report

_AT = re.compile(r"user code at (?P<file>.+):(?P<line>\d+)")
_AGAIN = re.compile(r"Recompiling function (?P<name>\S+) in (?P<file>.+):(?P<line>\d+)")
_LIMIT = re.compile(
    r"hit config\.(?P<limit>\w+) \((?P<n>\d+)\)\s+function: '(?P<name>.+)' \((?P<file>.+):(?P<line>\d+)\)"
)
_FRAME = re.compile(r"frame skipped: (?P<name>\S+) \((?P<file>.+) line (?P<line>\d+)\)")
_RESUMED = re.compile(r"torch_dynamo_resume_in_(?P<name>.+)_at_\d+$")
_SKIPPED = "falling back to eager"
_PREAMBLE = ("Encountered graph break", "Failed to handle graph break", "*** While handling")
_COMPILER = "torch._dynamo.convert_frame"  # the logger that tells when a function was compiled too often


class Function(NamedTuple):
    """One function of a program; what torch resumes behind a break begins at a later line of it."""

    file: str
    name: str
    begins: int


class Watch(logging.Handler):
    """While entered, notes the graph breaks and recompilations of whatever is compiled; `report` has them."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.report = Report()
        self.given_up: dict[Break, Function] = {}
        self.compiled: set[Function] = set()
        self._own: dict[tuple[str, int, str], int] = {}
        self._last: tuple[CodeType | None, tuple[str, int, str]] | None = None

    def __enter__(self) -> Self:
        # The handlers that torch adds would print what is noted here.
        self._quiet = _WithoutPrinting(self)
        self._quiet.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._quiet.__exit__(kind, error, trace)

    def emit(self, record: logging.LogRecord) -> None:
        """Called by `logging`."""
        text = record.getMessage()
        if record.name == _COMPILER:
            if found := _LIMIT.search(text):
                self._note_limit(found)
        elif found := _AGAIN.search(text):
            reasons = tuple(_guard(line) for line in text.splitlines() if re.match(r"\s+- \d+/\d+", line)) or (
                text.splitlines()[-1].strip(),
            )
            self.report.recompiles.append(Recompile(found["name"], found["file"], int(found["line"]), reasons))
        elif found := _AT.search(text):
            self._note(found["file"], int(found["line"]), text)

    def _note_limit(self, found: re.Match[str]) -> None:
        self.report.breaks.append(
            Break(
                found["file"], int(found["line"]), f"Compiled {found['n']} times",
                f"torch.compile stops at {found['limit']} and runs the function eagerly from then on.",
                "Hint: Watch().report.recompiles has the guards that failed.", eager=found["name"],
            )
        )  # fmt: skip

    def _note(self, file: str, line: int, text: str) -> None:
        kind, explanation, hint = _words(text)
        code, key = code_being_compiled(), (file, line, kind)
        skipped, named = _SKIPPED in text, _FRAME.search(text)
        if code is not None and not skipped:
            self.compiled.add(function_of(code))
        # A break is met while torch tries to inline its function into a caller, and again in the function itself.
        if (code is None or _stands_in(file, line, code)) and self._last != (code, key):
            self._own[key] = self._own.get(key, 0) + 1
        self._last = (code, key)
        position = next((i for i, b in enumerate(self.report.breaks) if (b.file, b.line, b.kind) == key), None)
        known = Break(file, line, kind, explanation, hint) if position is None else self.report.breaks[position]
        changed = replace(known, count=max(1, self._own.get(key, 0)))
        function = self.given_up.pop(known, None)
        if skipped and function is None:
            function = _given_up(code, named)
            changed = replace(changed, eager=function.name if function else "a function", in_loop=named is not None)
        if function is not None:
            self.given_up[changed] = function
        if position is None:
            self.report.breaks.append(changed)
        else:
            self.report.breaks[position] = changed


def code_being_compiled() -> CodeType | None:
    """The function that torch traces while it calls back or logs; None where it traces none."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_compile" and frame.f_globals.get("__name__") == _COMPILER:
            code = frame.f_locals.get("code")
            return code if isinstance(code, CodeType) else None
        frame = frame.f_back
    return None


def function_of(code: CodeType) -> Function:
    """The function of the program that code is, or whose rest it is behind a break."""
    *outer, name = code.co_qualname.split(".")
    resumed = _RESUMED.search(name)
    return Function(code.co_filename, ".".join([*outer, resumed["name"] if resumed else name]), code.co_firstlineno)


def _given_up(code: CodeType | None, named: re.Match[str] | None) -> Function | None:
    if code is not None:
        return function_of(code)
    return Function(named["file"], named["name"], int(named["line"])) if named else None


def _stands_in(file: str, line: int, code: CodeType) -> bool:
    return file == code.co_filename and any(line == number for *_, number in code.co_lines())


def _guard(line: str) -> str:
    """One guard that failed, without the source line that torch repeats behind it."""
    return re.sub(r"\s+# .*$", "", line.strip(" -"))


def _words(text: str) -> tuple[str, str, str]:
    """(kind, explanation, hint) of a message; the kind is the first line of its reason that is no preamble."""
    lines = [line.strip() for line in text.partition("Graph Break Reason:")[2].split("\n")]
    lines = [line for line in lines if line] or [text.strip().split("\n")[0]]
    kind = next((line for line in lines if not line.startswith(_PREAMBLE)), lines[0])
    explanation = next(
        (line.removeprefix("Explanation:").strip() for line in lines if line.startswith("Explanation:")), ""
    )
    hint = next((line for line in lines if line.startswith("Hint:")), "")
    return kind, re.sub(r" at 0x[0-9a-f]+", "", explanation), hint


class _WithoutPrinting:
    """Turns torch's logs of breaks and recompilations on, for one handler only."""

    def __init__(self, handler: logging.Handler) -> None:
        self._handler = handler

    def __enter__(self) -> None:
        # Private: what the user has asked to be logged. Without it, that is forgotten.
        self._state: Any = getattr(_internal, "log_state", None)
        if self._state is not None:
            self._before = (dict(self._state.log_qname_to_level), set(self._state.artifact_names))
        set_logs(graph_breaks=True, recompiles=True)
        self._removed = []
        for name in [n for n in logging.root.manager.loggerDict if n.endswith(("__graph_breaks", "__recompiles"))]:
            logger = logging.getLogger(name)
            self._removed.append((logger, logger.handlers[:], logger.propagate))
            logger.handlers[:] = [self._handler]
            logger.propagate = False
        logging.getLogger(_COMPILER).addHandler(self._handler)  # its warnings are printed as well

    def __exit__(self, *_: object) -> None:
        logging.getLogger(_COMPILER).removeHandler(self._handler)
        for logger, handlers, propagate in self._removed:
            logger.handlers[:] = handlers
            logger.propagate = propagate
        if self._state is None:
            set_logs()
            return
        self._state.log_qname_to_level.clear()
        self._state.log_qname_to_level.update(self._before[0])
        self._state.artifact_names.clear()
        self._state.artifact_names.update(self._before[1])
        _internal._init_logs()
