"""Which of the functions that Paddle's release notes announce exist here, and what each was checked against."""

import importlib.resources
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

RECORDED = "recorded against Paddle"
FORMULA = "checked against a formula"
TO_COME = "to come"
STATES = (RECORDED, FORMULA, TO_COME)
PAGE_HEAD = """# Coverage of Paddle's API

Every function that the release notes of Paddle 3.2 and 3.3 name, in their ten groups. *Recorded against Paddle*: calls
of it give what PaddlePaddle 3.3.1 gave, in dtype, shape and values. *Checked against a formula*: Paddle has no kernel
for the CPU, so it is compared with the definition. *To come*: absent here. The forms are those in which recorded calls
are tested: **p**ositional, Paddle's **k**eywords, the industry's keywords (**a**liases), **m**ixed, as a me**t**hod,
with **o**ut=, on a **0**-D tensor, with its **g**radient. This page is written by `tests/paddle_coverage.py`.
"""


@dataclass(frozen=True)
class Row:
    """One announced API, its state, and the letters of the forms in which it is tested."""

    name: str
    group: str
    state: str
    forms: str = ""


def announced() -> list[tuple[str, str]]:
    """The APIs of the release notes, with their group."""
    return [(name, group) for name, group, *_ in _lines("announced.tsv")]


def rows() -> list[Row]:
    """The state of every announced API when this version was made."""
    return [Row(*fields) for fields in _lines("coverage.tsv")]


def _lines(name: str) -> list[list[str]]:
    text = importlib.resources.files("oarlock.paddle").joinpath(name).read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines()]


def table(found: Sequence[Row]) -> str:
    """The rows as a Markdown table, with the counts above it."""
    counts = Counter(row.state for row in found)
    head = ", ".join(f"{counts[state]} {state}" for state in STATES)
    lines = [f"| `{row.name}` | {row.group} | {row.state} | {row.forms} |" for row in found]
    return "\n".join(
        [
            f"{len(found)} announced functions: {head}.",
            "",
            "| API | group | state | forms |",
            "|---|---|---|---|",
            *lines,
        ]
    )


def page(found: Sequence[Row]) -> str:
    """The page of the documentation."""
    return f"{PAGE_HEAD}\n{table(found)}\n"
