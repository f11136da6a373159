"""Where `torch.compile` could not follow a program: graph breaks, functions that run eagerly, and compilations again.

    report = explain(model, batch)
    print(report)                          # a table: file:line, kind, count, operations lost
    report.check(max_breaks=0)             # for CI

What is told is what torch logs (`TORCH_LOGS=graph_breaks,recompiles`), put in order.
"""

from __future__ import annotations

import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch._logging import _internal, set_logs  # pyright: ignore[reportPrivateImportUsage]
from torch.overrides import TorchFunctionMode

_AT = re.compile(r"user code at (?P<file>.+):(?P<line>\d+)")
_AGAIN = re.compile(r"Recompiling function (?P<name>\S+) in (?P<file>.+):(?P<line>\d+)")
_FRAME = re.compile(r"frame skipped: (?P<name>\S+) \((?P<file>.+) line (?P<line>\d+)\)")
_SKIPPED = "falling back to eager"
_PREAMBLE = ("Graph break", "Graph Break Reason", "Encountered", "Failed to", "User code", "***")


class TooManyBreaks(RuntimeError):
    """A program has more graph breaks than it may have; the message lists them."""


@dataclass(frozen=True)
class Break:
    """One place where a graph ends.

    Attributes:
        file, line: of the program.
        kind: in torch's words, such as "Data-dependent branching".
        explanation, hint: what torch says about it.
        count: how often it was met.
        eager: name of the function that therefore runs eagerly as a whole (the break is inside of a loop); "" where
            only the graph ends here and another begins behind it.
        ops_lost: calls of torch's API that run outside of graphs because of it, in one pass.
    """

    file: str
    line: int
    kind: str
    explanation: str
    hint: str
    count: int = 1
    eager: str = ""
    ops_lost: int = 1

    @property
    def place(self) -> str:
        """file:line, relative to the current folder where it is below."""
        return f"{_short(self.file)}:{self.line}"


@dataclass(frozen=True)
class Recompile:
    """A function that was compiled again, and the guards that failed."""

    function: str
    file: str
    line: int
    reasons: tuple[str, ...]


@dataclass
class Report:
    """What became of a program.

    Attributes:
        breaks: by place and kind, in the order of their first occurrence.
        recompiles: likewise.
        num_graphs, num_ops: compiled graphs and the operations in them; 0 where they were not counted.
    """

    breaks: list[Break] = field(default_factory=list)
    recompiles: list[Recompile] = field(default_factory=list)
    num_graphs: int = 0
    num_ops: int = 0

    @property
    def num_breaks(self) -> int:
        """Occurrences of breaks."""
        return sum(each.count for each in self.breaks)

    def check(self, max_breaks: int = 0) -> None:
        """Raise if there are more breaks than allowed.

        Raises:
            TooManyBreaks: with the table.
        """
        if self.num_breaks > max_breaks:
            raise TooManyBreaks(f"{self.num_breaks} graph breaks, {max_breaks} are allowed\n{self}")

    def __str__(self) -> str:
        lines = [f"{self.num_graphs} graphs with {self.num_ops} operations, {self.num_breaks} breaks"]
        if self.breaks:
            rows = [("where", "kind", "count", "ops lost")]
            rows += [(each.place, each.kind, str(each.count), str(each.ops_lost)) for each in self.breaks]
            widths = [max(len(row[i]) for row in rows) for i in range(4)]
            lines += [
                f"  {a:{widths[0]}}  {b:{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}".rstrip()
                for a, b, c, d in rows
            ]
        for each in self.breaks:
            eagerly = f"{each.eager} runs eagerly: the break is inside of a loop. " if each.eager else ""
            lines.append(f"{each.place}: {eagerly}{each.explanation} {each.hint}".rstrip())
        for again in self.recompiles:
            lines.append(f"{_short(again.file)}:{again.line}: {again.function} was compiled again: {again.reasons[0]}")
        return "\n".join(lines)


class Watch(logging.Handler):
    """While entered, notes the graph breaks and recompilations of whatever is compiled; `report` has them."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.report = Report()
        self._logger = logging.getLogger("torch._dynamo")

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
        if found := _AGAIN.search(text):
            reasons = tuple(line.strip(" -") for line in text.splitlines() if re.match(r"\s+- \d+/\d+", line))
            self.report.recompiles.append(
                Recompile(found["name"], found["file"], int(found["line"]), reasons or (text.splitlines()[-1].strip(),))
            )
        elif found := _AT.search(text):
            self._note(found["file"], int(found["line"]), text)

    def _note(self, file: str, line: int, text: str) -> None:
        kind, explanation, hint = _words(text)
        frame = _FRAME.search(text)
        eager = frame["name"] if frame else ("a function" if _SKIPPED in text else "")
        for i, known in enumerate(self.report.breaks):
            if (known.file, known.line, known.kind) == (file, line, kind):
                if eager and not known.eager:  # the same break, told again when its function is given up
                    self.report.breaks[i] = Break(file, line, kind, explanation, hint, known.count, eager)
                else:
                    self.report.breaks[i] = Break(file, line, kind, explanation, hint, known.count + 1, known.eager)
                return
        self.report.breaks.append(Break(file, line, kind, explanation, hint, 1, eager))


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

    def __exit__(self, *_: object) -> None:
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


def explain(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
    """Trace one call as `torch.compile` would, without compiling anything, and tell where it could not follow.

    Forget what was compiled before: afterwards everything compiles anew (with a `CompileCache`, quickly).

    Args:
        model: module or function.
        args, kwargs: of the call. To see what makes it compile again, call a compiled model within `Watch()`.

    Returns:
        the report; graphs and operations are those of this call.

    Raises:
        whatever the model raises.
    """
    report_of = Watch()

    def count(graph: torch.fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
        report_of.report.num_graphs += 1
        report_of.report.num_ops += sum(node.op.startswith("call_") for node in graph.graph.nodes)
        return graph.forward

    torch.compiler.reset()
    try:
        with report_of:
            torch.compile(model, backend=count)(*args, **kwargs)
    finally:
        torch.compiler.reset()
    report = report_of.report
    given_up = {(each.file, each.eager) for each in report.breaks if each.eager}
    if given_up:
        lost = _count_in(given_up, lambda: model(*args, **kwargs))
        report.breaks = [
            Break(*_fields(each), ops_lost=lost[each.file, each.eager]) if each.eager else each
            for each in report.breaks
        ]
    return report


def _fields(each: Break) -> tuple[Any, ...]:
    return (each.file, each.line, each.kind, each.explanation, each.hint, each.count, each.eager)


def _count_in(functions: Iterable[tuple[str, str]], call: Callable[[], object]) -> Counter[tuple[str, str]]:
    """Calls of torch's API below functions, by (file, name)."""
    counts: Counter[tuple[str, str]] = Counter()
    wanted = set(functions)

    class Counting(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            frame = sys._getframe(1)
            while frame is not None:
                if (place := (frame.f_code.co_filename, frame.f_code.co_name)) in wanted:
                    counts[place] += 1
                    break
                frame = frame.f_back
            return function(*args, **(kwargs or {}))

    with Counting():
        call()
    return counts


def _words(text: str) -> tuple[str, str, str]:
    """(kind, explanation, hint) of a message; the kind is its first line that is no preamble."""
    lines = [line.strip() for line in text.split("\n")]
    kind = next((line for line in lines if line and not line.startswith(_PREAMBLE)), lines[0])
    explanation = next(
        (line.removeprefix("Explanation:").strip() for line in lines if line.startswith("Explanation:")), ""
    )
    hint = next((line for line in lines if line.startswith("Hint:")), "")
    return kind, explanation, hint


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
