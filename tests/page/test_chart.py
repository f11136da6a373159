"""Charts, read back as a person reads them: from the tick labels to the values of the line."""

import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oarlock.page import Series, format_tick, line_chart, thin

SVG = "{http://www.w3.org/2000/svg}"


def parse(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def number(label: str) -> float:
    scale = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.get(label[-1], 1.0)
    return float(label.rstrip("kMGT")) * scale


def axis(root: ET.Element, anchor: str, coordinate: str) -> list[tuple[float, float]]:
    """(pixel, value) of the labelled ticks."""
    ticks = [t for t in root.iter(SVG + "text") if t.get("class") == "tick" and t.get("text-anchor") == anchor]
    return [(float(t.attrib[coordinate]), number(t.text or "")) for t in ticks]


def read_points(root: ET.Element, *, log_y: bool = False) -> list[tuple[float, float]]:
    """The first line's points in data units, by interpolation between the outermost tick labels."""
    path = next(p for p in root.iter(SVG + "path") if "line" in p.get("class", "") and len(p.get("d", "")) > 20)
    pixels = [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path.attrib["d"])]
    (x0, v0), (x1, v1) = (axis(root, "middle", "x")[i] for i in (0, -1))
    (y0, w0), (y1, w1) = (axis(root, "end", "y")[i] for i in (0, -1))
    if log_y:
        w0, w1 = math.log(w0), math.log(w1)
    ys = [w0 + (y - y0) / (y1 - y0) * (w1 - w0) for _, y in pixels]
    xs = [v0 + (x - x0) / (x1 - x0) * (v1 - v0) for x, _ in pixels]
    return list(zip(xs, [math.exp(y) for y in ys] if log_y else ys, strict=True))


@pytest.mark.parametrize("log_y", [False, True])
def test_the_line_reads_back_from_the_ticks(log_y: bool) -> None:
    xs = list(range(0, 201, 5))
    ys = [0.03 + 8 * math.exp(-x / 60) for x in xs]
    root = parse(line_chart([Series("loss", xs, ys)], title="t", log_y=log_y))
    for (x, y), (want_x, want_y) in zip(read_points(root, log_y=log_y), zip(xs, ys, strict=True), strict=True):
        assert x == pytest.approx(want_x, abs=0.3)  # 0.1 pixel of coordinates and of tick positions
        assert y == pytest.approx(want_y, rel=0.01, abs=0 if log_y else 0.02)


finite = st.floats(-1e30, 1e30, allow_subnormal=False).filter(lambda v: v == 0 or abs(v) > 1e-30)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(finite, st.sampled_from([math.nan, math.inf, -math.inf])), min_size=1, max_size=30),
    st.booleans(),
)
def test_any_values_give_a_well_formed_chart_inside_its_frame(ys: list[float], log_y: bool) -> None:
    root = parse(line_chart([Series("a", range(len(ys)), ys), Series("b", [3], [1.0])], title="t", log_y=log_y))
    for circle in root.iter(SVG + "circle"):
        assert -1 <= float(circle.attrib["cx"]) <= 561
        assert -1 <= float(circle.attrib["cy"]) <= 291
    num_ticks = len(axis(root, "end", "y"))
    assert 2 <= num_ticks <= 12


def test_values_that_are_not_finite_leave_a_gap() -> None:
    chart = line_chart([Series("a", range(6), [1, 2, math.nan, 3, math.inf, 4])], title="t")
    path = next(p for p in parse(chart).iter(SVG + "path") if p.get("class") == "line s1")
    assert re.sub(r"[\d. ]", "", path.attrib["d"]) == "MLMM"
    assert "no finite values yet" in line_chart([Series("a", [1], [math.nan])], title="t")
    assert "no finite values yet" in line_chart([], title="t")


def test_hover_titles_name_every_series_and_stay_few() -> None:
    xs = list(range(5000))
    chart = parse(line_chart([Series("raw", xs, xs), Series("mean", xs[::100], xs[::100])], title="t"))
    titles = [t.text or "" for t in chart.iter(SVG + "title")]
    assert len(titles) == 80
    assert titles[0] == "step 0\nraw 0\nmean 0"
    assert titles[-1].startswith("step 4,999\nraw 4999")


@pytest.mark.parametrize("place", [0, 1, 7, 0.25, -3, 12_345])
def test_a_single_place_is_the_only_tick_of_its_axis_and_in_its_middle(place: float) -> None:
    root = parse(line_chart([Series("a", [place], [2.0]), Series("b", [place], [math.nan])], title="t"))
    ((pixel, value),) = axis(root, "middle", "x")
    assert value == pytest.approx(place, rel=0.001)
    assert pixel == pytest.approx((58 + 560 - 18) / 2)


@pytest.mark.parametrize("steps", [[0, 1], [3, 4, 5], [10, 12], [0, 40]])
def test_between_whole_steps_there_are_no_ticks(steps: list[int]) -> None:
    ticks = [value for _, value in axis(parse(line_chart([Series("a", steps, steps)], title="t")), "middle", "x")]
    assert all(value.is_integer() and steps[0] <= value <= steps[-1] for value in ticks)
    assert len(ticks) >= 2
    halves = [step / 2 for step in steps]
    ticks = [value for _, value in axis(parse(line_chart([Series("a", halves, steps)], title="t")), "middle", "x")]
    assert len(ticks) >= 2


def test_a_line_of_zeros_has_no_negative_ticks() -> None:
    ticks = [value for _, value in axis(parse(line_chart([Series("a", [1, 2], [0, 0])], title="t")), "end", "y")]
    assert (min(ticks), max(ticks)) == (0, 1)


def test_thinning_keeps_order_extremes_and_gaps() -> None:
    points = [(float(i), math.sin(i / 50)) for i in range(10_000)]
    points[1234] = (1234.0, 99.0)
    points[4321] = (4321.0, math.nan)
    kept = thin(points, 100)
    assert len(kept) <= 300
    assert kept == sorted(kept, key=lambda p: p[0])
    assert (1234.0, 99.0) in kept
    assert any(math.isnan(y) for _, y in kept)
    assert thin(points[:50], 100) == points[:50]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.001, "0.001"),
        (5e-05, "5e-5"),
        (1.5, "1.5"),
        (9000, "9000"),
        (12000, "12k"),
        (3.2e6, "3.2M"),
        (-2e9, "-2G"),
        (1e20, "1e20"),
    ],
)
def test_ticks_are_short(value: float, text: str) -> None:
    assert format_tick(value) == text


def test_points_must_come_in_pairs() -> None:
    with pytest.raises(ValueError, match="series 'a': 2 xs but 1 ys"):
        Series("a", [1, 2], [1])
