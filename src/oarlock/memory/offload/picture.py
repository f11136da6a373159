"""A plan as plain values for a log, and those values as pictures and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oarlock.memory.amounts import amount
from oarlock.page import Series, line_chart
from oarlock.page.document import escape

if TYPE_CHECKING:
    from oarlock.memory.offload.plan import Plan

_WIDTH, _LEFT, _ROW, _TOP = 560, 136, 11, 40
_MAX_POINTS, _MAX_LANES = 400, 48
_NAMES = {"keep": "kept", "recompute": "computed again", "offload": "sent out"}
_COLORS = {"keep": 0, "recompute": 1, "offload": 2}


def plan_record(plan: Plan, state_bytes: int = 0) -> dict[str, Any]:
    """JSON-able: text, budget, rows by module, curves of memory over the step, and a lane for each storage.

    `state_bytes` of an optimizer are in the second tier between steps, beside what the plan sends there.

    A lane is [module, bytes, choice, spans]; a span is the [begin, end] in seconds in which it is held for autograd.
    """
    from oarlock.memory.offload.simulate import Simulator

    profile, outcome = plan.profile, plan.outcome
    simulator = Simulator(profile)
    needs, _ = simulator.needs(plan.choices, simulator.regions_of(plan.choices, plan.regions))
    times = np.append(outcome.times, outcome.seconds)
    releases = {g: moment for moment, g in outcome.releases}
    fetches = {g: moment for moment, g in outcome.fetches}
    made = {}
    for region in plan.regions:
        wanted = frozenset(g for g in profile.regions[region].inside if plan.choices[g] == "recompute")
        if wanted:
            made |= dict.fromkeys(wanted, simulator.again(region, wanted).moment)

    def at(moment: int) -> float:
        return float(times[simulator.piece(moment)])

    lanes = []
    for g, (group, choice) in enumerate(zip(profile.groups, plan.choices, strict=True)):
        if group.save is None or group.need is None or group.death >= group.need:
            continue
        save, need = at(simulator.save[g]), at(needs[g])
        if choice == "offload" and g in releases:
            spans = [[save, at(releases[g])], [at(fetches.get(g, needs[g])), need]]
        elif g in made:
            spans = [[at(made[g]), at(simulator.need[g])]]
        else:
            choice, spans = "keep", [[save, need]]
        lanes.append([group.key[1] or "model", group.num_bytes, choice, spans])
    return {
        "text": str(plan) + (f"; optimizer states in the second tier: {amount(state_bytes)}" if state_bytes else ""),
        "budget_bytes": plan.budget,
        "peak_bytes": plan.peak,
        "seconds": outcome.seconds,
        "rows": [list(row) for row in plan.rows()],
        "planned": _curve(outcome.times, outcome.memory),
        "kept": _curve(plan.unplanned.times, plan.unplanned.memory),
        "lanes": lanes,
    }


def plan_charts(record: dict[str, Any]) -> list[str]:
    """The curves of memory, and what is on the device when, as two SVG elements."""
    series = [
        Series(name, record[key][0], [y / 2**20 for y in record[key][1]], color=color)
        for name, key, color in (("everything kept", "kept", 1), ("planned", "planned", 0))
    ]
    ends = [0.0, max(record["planned"][0][-1], record["kept"][0][-1])]
    series.append(Series("budget", ends, [record["budget_bytes"] / 2**20] * 2, faint=True, color=2))
    return [line_chart(series, title="Memory over a step", x_label="seconds", y_label="MiB"), _lanes(record)]


def _curve(times: Any, memory: Any) -> list[list[float]]:
    """At most so many points; of each run the highest."""
    num = len(memory)
    runs = [range(num * i // _MAX_POINTS, num * (i + 1) // _MAX_POINTS) for i in range(_MAX_POINTS)]
    best = [max(run, key=lambda i: memory[i]) for run in runs if len(run)]
    return [[round(float(times[i]), 6) for i in best], [int(memory[i]) for i in best]]


def _lanes(record: dict[str, Any]) -> str:
    """One line per storage, the largest; a bar where it is held on the device."""
    lanes = record["lanes"]
    large = sorted(sorted(range(len(lanes)), key=lambda i: -lanes[i][1])[:_MAX_LANES])
    height = _TOP + _ROW * max(1, len(large)) + 40
    scale = (_WIDTH - _LEFT - 12) / max(record["seconds"], 1e-9)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="What is on the device, when" '
        'xmlns="http://www.w3.org/2000/svg"><text class="title" x="0" y="16">What is on the device, when'
        f'<tspan class="unit" dx="8">{len(large)} largest of {len(lanes)} storages</tspan></text>'
    ]
    x = 0
    for choice, name in _NAMES.items():
        parts.append(f'<rect {_fill(choice)} x="{x}" y="24" width="10" height="8"/>')
        parts.append(f'<text class="tick" x="{x + 14}" y="32">{name}</text>')
        x += 40 + 7 * len(name)
    previous = ""
    for row, i in enumerate(large):
        path, num_bytes, choice, spans = lanes[i]
        y = _TOP + row * _ROW
        if path != previous:
            text = path if len(path) <= 24 else "…" + path[-23:]
            parts.append(f'<text class="tick" style="font-size:9.5px" x="0" y="{y + 9}">{escape(text)}</text>')
            previous = path
        title = f"<title>{escape(path)}: {amount(num_bytes)}, {_NAMES[choice]}</title>"
        for begin, end in spans:
            width = max(1.0, (end - begin) * scale)
            parts.append(
                f'<rect {_fill(choice)} x="{_LEFT + begin * scale:.1f}" y="{y + 1}" width="{width:.1f}" '
                f'height="{_ROW - 2}">{title}</rect>'
            )
    bottom = _TOP + _ROW * max(1, len(large)) + 14
    parts.append(f'<text class="tick" x="{_LEFT}" y="{bottom}">0</text>')
    parts.append(
        f'<text class="tick" text-anchor="end" x="{_WIDTH - 12}" y="{bottom}">{record["seconds"]:.3g} s</text></svg>'
    )
    return "".join(parts)


def _fill(choice: str) -> str:
    return f'style="fill:var(--s{_COLORS[choice] + 1})"'
