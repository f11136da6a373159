"""The report of a run: one HTML page made from what the run wrote, at its end or while it goes on.

    write_report("runs/default")          # reads metrics.jsonl and config.toml, writes report.html

Events of `metrics.jsonl` that it shows beside the curves:

    start, resume                    environment, packing, other dicts as tables of their own; num_steps; plain values
    finished, stopped, non_finite,   how the run ended; without one it is "not finished", and its page reloads itself
    failed                           unless `oarlock train` began it and no process is at it any more
    sample                           prompt, text
    memory_plan                      what `oarlock.memory.offload.picture.plan_record` gives
    others                           as rows of a table
"""

import math
import os
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from oarlock.memory.offload.picture import plan_charts
from oarlock.page import Page, Series, line_chart
from oarlock.train.metrics import read_metrics
from oarlock.train.report_state import BEGIN, State, last_event, non_finite_text, not_finite, not_finite_since, state_of
from oarlock.train.units import format_bytes, format_count, format_duration, format_scientific

__all__ = ["smooth", "write_report"]

Records = list[dict[str, Any]]
_REFRESH_SECONDS = 30
_MAX_EVENTS = 20
_HIDDEN = {"kind", "step", "event", "num_steps"}


def write_report(run_dir: str | os.PathLike[str], *, sample: str | None = None) -> Path:
    """Write `report.html` into the folder of a run, atomically; a running run can be reported at any time.

    Args:
        run_dir: folder with `metrics.jsonl` and, if there, `config.toml`.
        sample: generated text to show; by default that of the last `sample` event.

    Returns:
        Path of the page.

    Raises:
        FileNotFoundError: no metrics in the folder.
    """
    run_dir = Path(run_dir)
    records = read_metrics(run_dir)
    train = [r for r in records if r["kind"] == "train"]
    evals = [r for r in records if r["kind"] == "eval"]
    events = [r for r in records if r["kind"] == "event"]
    start: dict[str, Any] = {}
    for event in events:
        start |= event if event.get("event") in BEGIN else {}
    state = state_of(run_dir, events)

    page = Page(
        run_dir.resolve().name,
        subtitle=_subtitle(records, start, state),
        kicker="Oarlock training report",
        refresh_seconds=None if state.has_ended else _REFRESH_SECONDS,
    )
    if wrong := not_finite(train, evals):
        page.paragraph(f"Not finite: {'; '.join(wrong)}.")
    if facts := _facts(train, evals):
        page.facts(facts)
    if charts := _charts(train, evals):
        page.heading("Curves")
        page.charts(charts)
    if plan := last_event(events, ("memory_plan",)):
        page.heading("Memory plan")
        page.paragraph(plan["text"])
        page.charts(plan_charts(plan))
        page.table(plan["rows"], header=("Saved in", "Kept", "Computed again", "Sent out"))
    sampled = last_event(events, ("sample",))
    if text := sample or sampled.get("prompt", "") + sampled.get("text", ""):
        page.heading("Sample")
        page.quote(text)
    tables = {"Run": {k: v for k, v in start.items() if not isinstance(v, dict)}}
    own = sorted((k for k, v in start.items() if isinstance(v, dict)), key=lambda k: k == "environment")
    tables |= {_label(k): start[k] for k in own}
    page.panels(
        (heading, [(_label(k), _value(k, v)) for k, v in content.items() if k not in _HIDDEN])
        for heading, content in tables.items()
        if set(content) - _HIDDEN
    )
    if rows := _event_rows(events):
        page.heading("Events")
        page.table(rows, header=("Step", "Event", "Details"))
    config = run_dir / "config.toml"
    if config.is_file():
        page.heading("Configuration")
        page.code(config.read_text(encoding="utf-8", errors="replace").strip(), title=config.name, folded=True)
    return page.write(run_dir / "report.html")


def smooth(values: Sequence[float], width: int) -> list[float]:
    """Moving mean over up to `width` values before and after each, as many after as before.

    The window shrinks towards the start, so the mean follows a steep beginning without a lag; at the end it looks back
    only. Values that are not finite do not count and stay in their place.
    """
    sums, counts = [0.0], [0]
    for value in values:
        good = math.isfinite(value)
        sums.append(sums[-1] + (value if good else 0.0))
        counts.append(counts[-1] + good)
    out = []
    for i, value in enumerate(values):
        left = min(i, width)
        begin, end = i - left, i + min(left, len(values) - 1 - i) + 1
        out.append((sums[end] - sums[begin]) / (counts[end] - counts[begin]) if math.isfinite(value) else value)
    return out


def _subtitle(records: Records, start: dict[str, Any], state: State) -> str:
    done = (r["step"] for r in records if r.get("event") != "non_finite")  # that step was not taken
    step, total = max(done, default=0), start.get("num_steps")
    parts = [f"{format_count(start['num_parameters'])} parameters"] if "num_parameters" in start else []
    parts.append(f"{step:,} of {total:,} steps" if total else f"{step:,} steps")
    at = "" if state.has_ended else f" at {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return ", ".join([*parts, state.text + at])


def _facts(train: Records, evals: Records) -> list[tuple[str, str, str]]:
    facts: list[tuple[str, str, str]] = []
    if accuracies := _column(evals, "accuracy"):
        margin = _column(evals, "margin")
        note = f"validation, margin {margin[-1]:.3f}" if margin else "validation"
        facts.append(("Accuracy", f"{accuracies[-1]:.3f}", note + _since(evals, "accuracy")))
    scored = [r for r in evals if _is_finite(r.get("bits_per_byte"))]
    if scored:
        best = min(scored, key=lambda r: r["bits_per_byte"])
        note = f"best {best['bits_per_byte']:.4f} at step {best['step']:,}" if best is not scored[-1] else "the best"
        note = f"validation, {note}{_since(evals, 'bits_per_byte')}"
        facts.append(("Bits per byte", f"{scored[-1]['bits_per_byte']:.4f}", note))
    if fact := _loss_fact(train):
        facts.append(fact)
    if seconds := _column(train, "seconds"):
        evaluating = _column(evals, "evaluation_seconds")
        note = f"and {format_duration(sum(evaluating))} evaluating" if evaluating else ""
        facts.append(("Training time", format_duration(max(seconds)), note))
    if tokens := _column(train, "tokens"):
        rates = [v for v in _column(train, "tokens_per_second") if math.isfinite(v)]
        note = f"{format_count(statistics.median(rates))} per second" if rates else ""
        facts.append(("Tokens", format_count(max(tokens)), note))
    flops = _column(train, "flops")
    shares = [v for v in _column(train, "mm_share") if math.isfinite(v)]
    if flops:
        note = f"{100 * statistics.median(shares):.0f} % of the matmul peak" if shares else ""
        facts.append(("Model FLOPs", format_scientific(max(flops)), note))
    if memory := _column(train, "memory_bytes"):
        facts.append(("Peak memory", format_bytes(max(memory)), ""))
    return facts


def _since(records: Records, name: str) -> str:
    """Since when a value is out of date, if it is."""
    since = not_finite_since(records, name)
    return "" if since is None else f"; not finite since step {since:,}"


def _loss_fact(train: Records) -> tuple[str, str, str] | None:
    """The last losses, smoothed; where some are not finite, since when, or how many."""
    known = [(r["step"], r["loss"]) for r in train if isinstance(r.get("loss"), (int, float))]
    if not known:
        return None
    bad = [step for step, loss in known if not math.isfinite(loss)]
    since = not_finite_since(train, "loss")
    if since is not None:
        return "Training loss", non_finite_text(known[-1][1]), f"not finite since step {since:,}"
    losses = [loss for _, loss in known]
    missing = f", {len(bad)} not finite, the first at step {bad[0]:,}" if bad else ""
    return "Training loss", f"{smooth(losses, _width(losses))[-1]:.3f}", f"{_loss_unit(train)}, smoothed{missing}"


def _charts(train: Records, evals: Records) -> list[str]:
    charts = []
    steps = [r["step"] for r in train]
    if losses := _column(train, "loss", keep_gaps=True):
        series = [
            Series("training", steps, losses, faint=True, color=0),
            Series("smoothed", steps, smooth(losses, _width(losses)), color=0),
        ]
        if checks := _column(evals, "loss", keep_gaps=True):
            series.append(Series("validation", [r["step"] for r in evals], checks, points=True, color=1))
        charts.append(line_chart(series, title="Loss", y_label=_loss_unit(train)))
    if scores := _column(evals, "bits_per_byte", keep_gaps=True):
        series = [Series("validation", [r["step"] for r in evals], scores, points=True, color=1)]
        charts.append(line_chart(series, title="Bits per byte", y_label="validation"))
    charts += _preference_charts(train, evals)
    for name, title, unit, log_y, is_noisy in (
        ("lr", "Learning rate", "", False, False),
        ("grad_norm", "Gradient norm", "before clipping", True, True),
        ("tokens_per_second", "Throughput", "tokens per second", False, True),
        ("mm_share", "Share of the matmul peak", "", False, True),
    ):
        values = _column(train, name, keep_gaps=True)
        if not values:
            continue
        series = [Series("each step", steps, values, faint=is_noisy, color=0)]
        if is_noisy:
            series.append(Series("smoothed", steps, smooth(values, _width(values)), color=0))
        charts.append(line_chart(series, title=title, y_label=unit, log_y=log_y))
    return charts


def _preference_charts(train: Records, evals: Records) -> list[str]:
    """What a run of task dpo shows besides its loss."""
    charts = []
    for name, title, unit in (
        ("accuracy", "Accuracy", "pairs with a margin above 0"),
        ("margin", "Margin", "beta x gain in log-probability"),
        ("chosen_logp", "Chosen answers", "log-probability, nats"),
        ("rejected_logp", "Rejected answers", "log-probability, nats"),
    ):
        if values := _column(train, name, keep_gaps=True):
            smoothed = smooth(values, _width(values))
            series = [Series("training", [r["step"] for r in train], smoothed, color=0)]
            if checks := _column(evals, name, keep_gaps=True):
                series.append(Series("validation", [r["step"] for r in evals], checks, points=True, color=1))
            charts.append(line_chart(series, title=title, y_label=unit))
    return charts


def _loss_unit(train: Records) -> str:
    return "per pair" if any("margin" in record for record in train) else "nats per token"


def _event_rows(events: Records) -> list[tuple[str, str, str]]:
    rows = []
    for event in events:
        if event.get("event") in ("start", "sample", "finished", "memory_plan"):
            continue
        hidden = event if event.get("event") in BEGIN else _HIDDEN  # what a resumption carries is in the tables
        shown = {k: v for k, v in event.items() if k not in hidden and v not in ("", None)}
        details = ", ".join(f"{_label(k)} {_value(k, v)}" for k, v in shown.items())
        rows.append((f"{event['step']:,}", str(event.get("event", "")), details))
    return rows[-_MAX_EVENTS:]


def _column(records: Records, name: str, *, keep_gaps: bool = False) -> list[float]:
    """The numbers under `name`; with `keep_gaps` one per record, NaN where there is none, or [] if there is none."""
    values = [float(v) if isinstance(v := r.get(name), (int, float)) else math.nan for r in records]
    if all(math.isnan(v) for v in values):
        return []
    return values if keep_gaps else [v for v in values if not math.isnan(v)]


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _width(values: Sequence[float]) -> int:
    """Half a smoothing window that follows the length of the run: 4 % of it, 50 steps at most."""
    return min(50, len(values) // 25)


def _label(name: str) -> str:
    known = {"matmul_peak": "Matmul peak, FLOP/s", "oarlock": "oarlock", "torch": "torch"}
    text = name.removeprefix("num_").removesuffix("_bytes").replace("_", " ").replace("flops", "FLOPs")
    return known.get(name, text[:1].upper() + text[1:])


def _value(name: str, value: Any) -> str:
    if name.endswith("_bytes") and isinstance(value, (int, float)):
        return format_bytes(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}" if 1e-4 <= abs(value) < 1e6 or value == 0 else format_scientific(value)
    if isinstance(value, dict):
        return ", ".join(f"{_label(k)} {_value(k, v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(_value(name, v) for v in value)
    return str(value)
