"""Which of the announced functions exist here, and what each was checked against."""

import importlib.resources
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

import oarlock.paddle as paddle

STATES = ("recorded against Paddle", "present", "to come")


@dataclass(frozen=True)
class Row:
    """One announced API and its state."""

    name: str
    group: str
    state: str


def announced() -> list[tuple[str, str]]:
    """The APIs of the release notes, with their group."""
    text = importlib.resources.files("oarlock.paddle").joinpath("announced.tsv").read_text(encoding="utf-8")
    return [(name, group) for name, group in (line.split("\t") for line in text.splitlines())]


def rows(golden: Path | None = None) -> list[Row]:
    """The state of every announced API; `golden` is the folder of recorded answers of the tests."""
    files = sorted(golden.glob("*.json")) if golden else []
    calls = "\n".join(call for file in files for call in json.loads(file.read_text(encoding="utf-8")))
    names = paddle.patch_tensor()
    try:
        return [Row(name, group, _state(name, calls)) for name, group in announced()]
    finally:
        paddle.unpatch_tensor()
        assert not any(hasattr(torch.Tensor, name) for name in names)


def _state(name: str, calls: str) -> str:
    found: object = paddle
    for part in name.split(".")[1:] or [name]:
        found = getattr(found, part, None)
    if found is None:
        return STATES[2]
    word = name.replace("paddle.nn.functional.", "F.").replace("paddle.Tensor.", ").")
    return STATES[0] if f"{word}(" in calls else STATES[1]


def table(found: list[Row]) -> str:
    """The rows as a Markdown table, with the counts above it."""
    counts = Counter(row.state for row in found)
    head = ", ".join(f"{counts[state]} {state}" for state in STATES)
    lines = [f"| `{row.name}` | {row.group} | {row.state} |" for row in found]
    return "\n".join(
        [f"{len(found)} announced functions: {head}.", "", "| API | group | state |", "|---|---|---|", *lines]
    )
