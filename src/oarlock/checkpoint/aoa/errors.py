"""One family of errors: each shows the statement, a caret under the offending part, and how it came about."""

from collections.abc import Sequence
from typing import NamedTuple


class Place(NamedTuple):
    """Characters `start` to `stop` of `text`; `label` is what its lines are called: "line", "statement 3, line"."""

    text: str
    start: int
    stop: int
    label: str = "line"

    @property
    def line(self) -> int:
        """Number of the line that holds `start`, from 1."""
        return self.text.count("\n", 0, self.start) + 1

    @property
    def column(self) -> int:
        """Number of the column of `start`, from 1."""
        return self.start - self.text.rfind("\n", 0, self.start)

    @property
    def excerpt(self) -> str:
        """The characters themselves, blanks collapsed."""
        return " ".join(self.text[self.start : self.stop].split())

    def drawn(self) -> str:
        """The line with carets under the characters."""
        first = self.start - (self.column - 1)
        end = self.text.find("\n", first)
        line = self.text[first:] if end < 0 else self.text[first:end]
        width = max(1, min(self.stop, first + len(line)) - self.start)
        before = "".join("\t" if character == "\t" else " " for character in line[: self.column - 1])
        return f"    {line}\n    {before}{'^' * width}"

    def __str__(self) -> str:
        return f"{self.label} {self.line}, column {self.column}"


class AOAError(ValueError):
    """A program that cannot mean anything, or not for these tensors.

    Attributes:
        reason: what is wrong, in one sentence.
        place: where in the program; None if no statement is to blame.
        chain: how the statement came about: one line per macro expansion, outermost first.
        hint: what to do about it; may be empty.
    """

    def __init__(self, reason: str, place: Place | None = None, chain: Sequence[str] = (), hint: str = "") -> None:
        self.reason, self.place, self.chain, self.hint = reason, place, tuple(chain), hint
        lines = [f"{place}: {reason}" if place else reason]
        if place:
            lines.append(place.drawn())
        lines += [f"    {step}" for step in chain]
        if hint:
            lines.append(f"    {hint}")
        super().__init__("AOA " + "\n".join(lines))
