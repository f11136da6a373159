"""What became of a program under torch.compile: graph breaks and recompilations, as a table and as a check for CI."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


class TooManyBreaks(RuntimeError):
    """A program has more graph breaks than it may have; the message lists them."""


@dataclass(frozen=True)
class Break:
    """One place where a graph ends.

    Attributes:
        file, line: of the program.
        kind: in torch's words, such as "Data-dependent branching".
        explanation, hint: what torch says about it.
        count: in how much compiled code a graph ends here: two calls on one line count twice; that torch met the same
            break before, while it tried to inline the function into a caller, does not count.
        eager: name of the function that therefore runs eagerly as a whole (the break is inside of a loop or of another
            block in which a graph cannot end); "" where only the graph ends here and another begins behind it.
        in_loop: whether the function was given up because of a loop.
        ops_lost: calls of torch's API that run outside of graphs because of it, in one pass.
    """

    file: str
    line: int
    kind: str
    explanation: str
    hint: str
    count: int = 1
    eager: str = ""
    in_loop: bool = False
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
        num_graphs, num_ops: compiled graphs and the operations in them; None where they were not counted (`Watch`).
    """

    breaks: list[Break] = field(default_factory=list)
    recompiles: list[Recompile] = field(default_factory=list)
    num_graphs: int | None = None
    num_ops: int | None = None

    @property
    def num_breaks(self) -> int:
        """Occurrences of breaks."""
        return sum(each.count for each in self.breaks)

    def check(self, max_breaks: int = 0) -> None:
        """Raise if there are more breaks than allowed, or if nothing was traced that could have had some.

        Raises:
            TooManyBreaks: with the table.
        """
        if self.num_breaks > max_breaks:
            allowed = f"{max_breaks} {'is' if max_breaks == 1 else 'are'} allowed"
            raise TooManyBreaks(f"{counted(self.num_breaks, 'graph break')}, {allowed}\n{self}")
        if self.num_graphs == 0:
            raise TooManyBreaks(f"no graph was made: torch.compile found nothing to trace\n{self}")

    def __str__(self) -> str:
        graphs = ""
        if self.num_graphs is not None:
            graphs = f"{counted(self.num_graphs, 'graph')} with {counted(self.num_ops or 0, 'operation')}, "
        again = f", {counted(len(self.recompiles), 'recompilation')}" if self.recompiles else ""
        lines = [f"{graphs}{counted(self.num_breaks, 'break')}{again}"]
        if self.breaks:
            rows = [("where", "kind", "count", "ops lost")]
            rows += [(each.place, each.kind, str(each.count), str(each.ops_lost)) for each in self.breaks]
            widths = [max(len(row[i]) for row in rows) for i in range(4)]
            lines += [
                f"  {a:{widths[0]}}  {b:{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}".rstrip()
                for a, b, c, d in rows
            ]
        for each in self.breaks:
            why = ": the break is inside of a loop" if each.in_loop else ""
            eagerly = f"{each.eager} runs eagerly{why}. " if each.eager else ""
            lines.append(f"{each.place}: {eagerly}{each.explanation} {each.hint}".rstrip())
        for each in self.recompiles:
            lines.append(f"{_short(each.file)}:{each.line}: {each.function} was compiled again: {each.reasons[0]}")
        return "\n".join(lines)


def counted(number: int, noun: str) -> str:
    """`1 break`, `2 breaks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
