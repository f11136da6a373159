"""Two results of a benchmark side by side: which figures moved.

A result is a JSON file: a list of rows {"figure": id, "value": number, "detail": text}.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Change", "compare", "compare_table", "read_figures"]


@dataclass(frozen=True)
class Change:
    """A figure in the old and the new result; None where it is absent."""

    figure: str
    old: float | None
    new: float | None

    @property
    def ratio(self) -> float | None:
        """new / old; None if one is absent or the old one is 0."""
        return None if self.old is None or self.new is None or self.old == 0 else self.new / self.old

    def moved(self, threshold: float) -> bool:
        """Whether the figure appeared, went, or changed by more than `threshold` (0.05 = 5 %)."""
        if self.old is None or self.new is None or not (math.isfinite(self.old) and math.isfinite(self.new)):
            return not (self.old == self.new or (self.old != self.old and self.new != self.new))
        return abs(self.new - self.old) > threshold * abs(self.old)


def read_figures(path: str | os.PathLike[str]) -> dict[str, float]:
    """The figures of a result file, in its order.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a list of rows, a value that is not a number, or a figure that appears twice.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no benchmark result {path}")
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(rows, list):
        raise ValueError(f"{path}: expected a list of rows {{figure, value, detail}}, got {type(rows).__name__}")
    figures: dict[str, float] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or not isinstance(row.get("figure"), str):
            raise ValueError(f"{path}, row {number}: expected {{figure, value, detail}}, got {row!r}")
        value = row.get("value")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{path}, row {number}: value of {row['figure']!r} must be a number, got {value!r}")
        if row["figure"] in figures:
            raise ValueError(f"{path}, row {number}: figure {row['figure']!r} appears twice")
        figures[row["figure"]] = float(value)
    return figures


def compare(old: Mapping[str, float], new: Mapping[str, float]) -> list[Change]:
    """Every figure of either result: those of `new` in its order, then those that only `old` has."""
    return [Change(figure, old.get(figure), new.get(figure)) for figure in [*new, *(f for f in old if f not in new)]]


def compare_table(changes: list[Change], threshold: float = 0.05) -> str:
    """A text table; figures that moved by more than `threshold` are marked with `*`."""
    rows = [("", "figure", "old", "new", "new/old")]
    for change in changes:
        mark = "*" if change.moved(threshold) else ""
        ratio = "" if change.ratio is None else f"{change.ratio:.3f}"
        rows.append((mark, change.figure, _number(change.old), _number(change.new), ratio))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = [
        f"{m:1} {f:<{widths[1]}}  {o:>{widths[2]}}  {n:>{widths[3]}}  {r:>{widths[4]}}".rstrip()
        for m, f, o, n, r in rows
    ]
    num_moved = sum(change.moved(threshold) for change in changes)
    lines.append(f"{num_moved} of {len(changes)} figures moved by more than {threshold:.0%}")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "absent" if value is None else f"{value:.4g}"
