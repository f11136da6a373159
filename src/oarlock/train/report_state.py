"""What a report says of the state of a run: whether and how it has ended, and which of its numbers are not finite."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from oarlock.checkpoint import CheckpointError
from oarlock.checkpoint.directory import locked

Records = list[dict[str, Any]]
BEGIN, END = ("start", "resume"), ("finished", "stopped", "non_finite", "failed")
_STATUS = "status.json"


@dataclass(frozen=True)
class State:
    """Of a run.

    Attributes:
        text: a few words.
        has_ended: nothing will be added to it unless somebody resumes it.
    """

    text: str
    has_ended: bool


def state_of(run_dir: Path, events: Records) -> State:
    """From the last event of an end, if the run was not begun again after it; else from who holds the folder."""
    end = last_event(events, END, after=BEGIN)
    name = end.get("event")
    if name == "finished":
        return State("finished", has_ended=True)
    if name == "stopped":
        return State(f"stopped by {end.get('signal')}", has_ended=True)
    if name == "non_finite":
        is_norm = _is_finite(end.get("loss")) and not _is_finite(end.get("grad_norm"))
        what = "gradient norm" if is_norm else "loss"
        return State(f"stopped by a {what} that is not finite", has_ended=True)
    if name == "failed":
        return State(f"ended by an error: {end.get('error')}", has_ended=True)
    if (run_dir / _STATUS).is_file() and not _is_held(run_dir):  # others than `oarlock train` do not hold it
        return State("not finished, and no process is training it", has_ended=True)
    return State("not finished", has_ended=False)


def last_event(events: Records, names: Sequence[str], *, after: Sequence[str] = ()) -> dict[str, Any]:
    """The last event of one of the names, {} if there is none, or none after the last event named in `after`."""
    for event in reversed(events):
        if event.get("event") in names:
            return event
        if event.get("event") in after:
            break
    return {}


def not_finite_since(records: Records, name: str) -> int | None:
    """The step from which on no value under `name` is finite; None if the last one is, or there is none."""
    since = None
    for record in reversed(records):
        value = record.get(name)
        if _is_number(value):
            if math.isfinite(value):
                break
            since = record["step"]
    return since


def not_finite(train: Records, evals: Records) -> list[str]:
    """A few words for each kind of number that is not finite at some step: which, and at which steps."""
    told = []
    for records, prefix in ((train, ""), (evals, "validation ")):
        for name in dict.fromkeys(name for record in records for name in record):
            wrong = [r for r in records if _is_number(v := r.get(name)) and not math.isfinite(v)]
            if not wrong:
                continue
            label = prefix + name.replace("grad_norm", "gradient norm").replace("_", " ")
            steps, since = [r["step"] for r in wrong], not_finite_since(records, name)
            if since is not None and since == steps[0]:
                when = f"since step {since:,}"
            elif len(steps) == 1:
                when = f"at step {steps[0]:,}"
            else:
                when = f"at {len(steps):,} steps, the first {steps[0]:,}, the last {steps[-1]:,}"
            told.append(f"{label} {when} ({', '.join(dict.fromkeys(non_finite_text(r[name]) for r in wrong))})")
    return told


def non_finite_text(value: float) -> str:
    """A number that is not finite as the metrics' file has it."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value)


def _is_held(run_dir: Path) -> bool:
    """Whether a process trains in the folder, as far as the file system can tell; True where it cannot."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with locked(run_dir) as is_known:
                return not is_known
    except (CheckpointError, OSError):
        return True
