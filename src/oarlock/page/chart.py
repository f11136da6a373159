"""SVG line charts in plain text: axes, ticks, legend and hover titles, without any library."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from oarlock.page.document import escape


@dataclass(frozen=True)
class Series:
    """One line of a chart: the points (xs[i], ys[i]), x increasing; a point that is not finite leaves a gap.

    `faint` draws it thin behind the others; `color` picks one of the page's six colours (by default: by position);
    `points` marks every point, for lines of few points.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    faint: bool = False
    points: bool = False
    color: int | None = None

    def __post_init__(self) -> None:
        if len(self.xs) != len(self.ys):
            raise ValueError(f"series {self.name!r}: {len(self.xs)} xs but {len(self.ys)} ys; they go in pairs")


_WIDTH, _HEIGHT = 560, 290
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 18, 36, 40
_NUM_COLORS = 6
_NUM_BANDS = 80  # hover targets per chart: enough to aim at, few enough to keep the page small


def line_chart(
    series: Sequence[Series], *, title: str, x_label: str = "step", y_label: str = "", log_y: bool = False
) -> str:
    """An SVG line chart with axes, ticks, a legend and one hover title per place on the x axis.

    Args:
        series: the lines; long ones are thinned to what the width can show (extremes are kept).
        title: shown at the top left. The unit `y_label` follows it.
        x_label: shown under the x axis.
        log_y: a decimal logarithm on the y axis; points that are not positive are then left out.

    Returns:
        One `<svg>` element; its colours come from the style of `Page`.
    """
    gapped = [_points(s, log_y) for s in series]
    shown = [[p for p in points if math.isfinite(p[1])] for points in gapped]
    xs = [x for points in gapped for x, _ in points]  # a line that ends early ends before its axis does
    ys = [y for points in shown for _, y in points]
    head = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}" '
        'xmlns="http://www.w3.org/2000/svg">'
        f'<text class="title" x="0" y="16">{escape(title)}'
        + (f'<tspan class="unit" dx="8">{escape(y_label)}</tspan>' if y_label else "")
        + "</text>"
    )
    if not ys:
        middle = f'x="{_WIDTH / 2:g}" y="{_HEIGHT / 2:g}"'
        return f'{head}<text class="tick" text-anchor="middle" {middle}>no finite values yet</text></svg>'

    x_axis = _Axis.fitted(xs, _LEFT, _WIDTH - _RIGHT, 6)
    make_y = _Axis.log if log_y else _Axis.linear
    y_axis = make_y(min(ys), max(ys), _HEIGHT - _BOTTOM, _TOP, 5)

    parts = [head, _frame(x_axis, y_axis, x_label), _legend(series)]
    order = sorted(range(len(series)), key=lambda i: not series[i].faint)  # faint lines lie behind
    parts += [_line(series[i], gapped[i], _color(series, i), x_axis, y_axis) for i in order]
    parts.append(_bands(series, shown, x_axis, y_axis, x_label))
    return "".join(parts) + "</svg>"


def thin(points: Sequence[tuple[float, float]], num_buckets: int) -> list[tuple[float, float]]:
    """At most 3 * `num_buckets` of the points: of each run of equal length the lowest, the highest and one gap.

    A gap is a y that is not finite. The order is kept.
    """
    if len(points) <= 3 * num_buckets:
        return list(points)
    kept: list[tuple[float, float]] = []
    for bucket in range(num_buckets):
        run = range(bucket * len(points) // num_buckets, (bucket + 1) * len(points) // num_buckets)
        finite = [i for i in run if math.isfinite(points[i][1])]
        gaps = [i for i in run if not math.isfinite(points[i][1])]
        chosen = set(gaps[:1])
        if finite:
            chosen |= {min(finite, key=lambda i: points[i][1]), max(finite, key=lambda i: points[i][1])}
        kept += [points[i] for i in sorted(chosen)]
    return kept


def format_tick(value: float) -> str:
    """A short number for people: 0.001, 1.5, 12k, 3.2M, 1e-7."""
    size = abs(value)
    if value == 0:
        return "0"
    if size >= 1e15 or size < 1e-4:
        return f"{value:.3g}".replace("e-0", "e-").replace("e+", "e")
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if size >= scale * (10 if unit == "k" else 1):
            return f"{value / scale:.4g}{unit}"
    return f"{value:.4g}"


@dataclass(frozen=True)
class _Axis:
    """Maps values to pixels: `start` is the pixel of `low`, `stop` of `high`."""

    low: float
    high: float
    start: float
    stop: float
    ticks: tuple[float, ...]
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        return self.start + (value - low) / (high - low) * (self.stop - self.start)

    @staticmethod
    def fitted(values: Sequence[float], start: float, stop: float, num_ticks: int) -> "_Axis":
        """An axis that ends at the data; ticks are whole where the values are, and one value is the only tick."""
        low, high = min(values), max(values)
        if _is_constant(low, high):
            margin = abs(low) * 0.05 or 0.5
            return _Axis(low - margin, high + margin, start, stop, (low,))
        step = _step(low, high, num_ticks)
        if all(value.is_integer() for value in values):
            step = max(step, 1.0)
        slack = 1e-9 * (high - low)
        ticks = (i * step for i in range(math.floor(low / step), math.ceil(high / step) + 1))
        return _Axis(low, high, start, stop, tuple(t for t in ticks if low - slack <= t <= high + slack))

    @staticmethod
    def linear(low: float, high: float, start: float, stop: float, num_ticks: int) -> "_Axis":
        """An axis in steps of 1, 2 or 5 times a power of ten."""
        if low == high == 0:  # most of what is drawn cannot be negative
            high = 1.0
        elif _is_constant(low, high):  # such a line sits in the middle
            margin = abs(low) * 0.05
            low, high = low - margin, high + margin
        step = _step(low, high, num_ticks)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        ticks = tuple(i * step for i in range(first, last + 1))
        return _Axis(ticks[0], ticks[-1], start, stop, ticks)

    @staticmethod
    def log(low: float, high: float, start: float, stop: float, num_ticks: int) -> "_Axis":
        """A logarithmic axis with ticks at powers of ten, and at 2 and 5 times them where few powers are in sight."""
        if high / low < 1.05:
            low, high = low / 1.5, high * 1.5
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        multiples = (1, 2, 5) if last - first <= 2 else (1,)
        every = max(1, (last - first) // num_ticks)
        marks = [m * 10.0**e for e in range(first, last + 1, every) for m in multiples]
        low = max([t for t in marks if t <= low * 1.0001] or [low])
        high = min([t for t in marks if t >= high * 0.9999] or [high])
        return _Axis(low, high, start, stop, tuple(t for t in marks if low * 0.999 <= t <= high * 1.001), is_log=True)


def _is_constant(low: float, high: float) -> bool:
    return high - low <= 1e-9 * max(abs(low), abs(high))


def _step(low: float, high: float, num_ticks: int) -> float:
    """1, 2 or 5 times a power of ten."""
    raw = (high - low) / num_ticks
    power = 10.0 ** math.floor(math.log10(raw))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)


def _points(series: Series, log_y: bool) -> list[tuple[float, float]]:
    """The series' points; a y that cannot be drawn becomes NaN, a gap."""
    pairs = ((float(x), float(y)) for x, y in zip(series.xs, series.ys, strict=True))
    return [(x, y if y > 0 or not log_y else math.nan) for x, y in pairs if math.isfinite(x)]


def _color(series: Sequence[Series], index: int) -> int:
    chosen = series[index].color
    return (index if chosen is None else chosen) % _NUM_COLORS + 1


def _frame(x_axis: _Axis, y_axis: _Axis, x_label: str) -> str:
    parts = []
    for tick in y_axis.ticks:
        y = f"{y_axis(tick):.1f}"
        parts.append(f'<path class="grid" d="M{_LEFT} {y}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text class="tick" text-anchor="end" x="{_LEFT - 8}" y="{y}" dy="4">{format_tick(tick)}</text>')
    for tick in x_axis.ticks:
        x = f"{x_axis(tick):.1f}"
        parts.append(f'<path class="axis" d="M{x} {_HEIGHT - _BOTTOM}v4"/>')
        parts.append(
            f'<text class="tick" text-anchor="middle" x="{x}" y="{_HEIGHT - _BOTTOM + 17}">{format_tick(tick)}</text>'
        )
    parts.append(f'<path class="axis" d="M{_LEFT} {_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}"/>')
    parts.append(
        f'<text class="label" text-anchor="end" x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 6}">{escape(x_label)}</text>'
    )
    return "".join(parts)


def _legend(series: Sequence[Series]) -> str:
    """One row of names at the top right; a single line needs none, the title names it."""
    if len(series) < 2:
        return ""
    parts, x = [], float(_WIDTH - _RIGHT)
    for index in reversed(range(len(series))):
        name = series[index].name
        x -= 6.6 * len(name)
        parts.append(f'<text class="label" x="{x:.1f}" y="16">{escape(name)}</text>')
        faint = " faint" if series[index].faint else ""
        parts.append(f'<path class="line s{_color(series, index)}{faint}" d="M{x - 21:.1f} 12h15"/>')
        x -= 34
    return "".join(parts)


def _line(series: Series, points: list[tuple[float, float]], color: int, x_axis: _Axis, y_axis: _Axis) -> str:
    commands, dots, pen_down = [], [], False
    for x, y in thin(points, _WIDTH):
        if not math.isfinite(y):
            pen_down = False
            continue
        commands.append(f"{'L' if pen_down else 'M'}{x_axis(x):.1f} {y_axis(y):.1f}")
        dots.append(f'<circle class="dot s{color}" cx="{x_axis(x):.1f}" cy="{y_axis(y):.1f}" r="2.6"/>')
        pen_down = True
    faint = " faint" if series.faint else ""
    marks = "".join(dots) if series.points or len(dots) == 1 else ""
    return f'<path class="line s{color}{faint}" d="' + "".join(commands) + f'"/>{marks}'


def _bands(
    series: Sequence[Series], shown: list[list[tuple[float, float]]], x_axis: _Axis, y_axis: _Axis, x_label: str
) -> str:
    """Invisible strips that name the values near the pointer: hover works without a script."""
    places = sorted({x for points in shown for x, _ in points})
    if len(places) > _NUM_BANDS:
        places = [places[round(i * (len(places) - 1) / (_NUM_BANDS - 1))] for i in range(_NUM_BANDS)]
    centers = [x_axis(x) for x in places]
    edges = [float(_LEFT)] + [(a + b) / 2 for a, b in pairwise(centers)] + [_WIDTH - _RIGHT + 1.0]
    parts = []
    for i, (place, center) in enumerate(zip(places, centers, strict=True)):
        lines, dots = [f"{x_label} {place:,g}" if abs(place) < 1e6 else f"{x_label} {format_tick(place)}"], []
        for index, points in enumerate(shown):
            near = bisect_left(points, (place, -math.inf))
            inside = [p for p in points[max(0, near - 1) : near + 1] if edges[i] <= x_axis(p[0]) <= edges[i + 1]]
            if inside:
                x, y = min(inside, key=lambda p: abs(p[0] - place))
                lines.append(f"{series[index].name} {y:.4g}")
                dots.append(
                    f'<circle class="dot s{_color(series, index)}" cx="{x_axis(x):.1f}" cy="{y_axis(y):.1f}" r="3"/>'
                )
        parts.append(
            f'<g class="band"><title>{escape(chr(10).join(lines))}</title>'
            f'<rect x="{edges[i]:.1f}" y="{_TOP}" width="{edges[i + 1] - edges[i]:.1f}" '
            f'height="{_HEIGHT - _BOTTOM - _TOP}"/>'
            f'<path class="axis" d="M{center:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>{"".join(dots)}</g>'
        )
    return "".join(parts)
