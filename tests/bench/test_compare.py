"""Comparing results: every figure of either side appears, and what moved is marked."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oarlock.bench.compare import Change, compare, compare_table, read_figures

FIGURES = st.dictionaries(st.sampled_from("abcdef"), st.floats(-1e6, 1e6), max_size=6)


def write(path: Path, rows: object) -> Path:
    path.write_text(json.dumps(rows))
    return path


@given(FIGURES, FIGURES)
def test_every_figure_appears_once_with_both_values(old: dict[str, float], new: dict[str, float]) -> None:
    changes = compare(old, new)
    assert {c.figure for c in changes} == old.keys() | new.keys()
    assert len(changes) == len(old.keys() | new.keys())
    for change in changes:
        assert (change.old, change.new) == (old.get(change.figure), new.get(change.figure))
    num_marked = sum(line.startswith("*") for line in compare_table(changes).splitlines())
    assert num_marked == sum(c.moved(0.05) for c in changes)


def test_the_table() -> None:
    old = {"mm_share": 0.62, "vs_hf": 1.5, "gone": 2.0}
    new = {"mm_share": 0.63, "vs_hf": 1.2, "peak_gib": 1.25}
    assert compare_table(compare(old, new)).splitlines() == [
        "  figure       old     new  new/old",
        "  mm_share    0.62    0.63    1.016",
        "* vs_hf        1.5     1.2    0.800",
        "* peak_gib  absent    1.25",
        "* gone           2  absent",
        "3 of 4 figures moved by more than 5%",
    ]


@pytest.mark.parametrize(
    ("old", "new", "moved"),
    [
        (1.0, 1.04, False),
        (1.0, 1.06, True),
        (1.0, 0.94, True),
        (0.0, 0.0, False),
        (0.0, 1e-9, True),
        (-1.0, -1.04, False),
        (math.nan, math.nan, False),
        (1.0, math.nan, True),
        (math.inf, math.inf, False),
    ],
)
def test_what_counts_as_moved(old: float, new: float, moved: bool) -> None:
    assert Change("x", old, new).moved(0.05) is moved


def test_results_are_read_in_order(tmp_path: Path) -> None:
    rows = [{"figure": "b", "value": 2, "detail": "2 threads"}, {"figure": "a", "value": 1.5, "detail": ""}]
    assert list(read_figures(write(tmp_path / "r.json", rows)).items()) == [("b", 2.0), ("a", 1.5)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"a": 1}, "expected a list of rows"),
        ([{"value": 1}], r"row 0: expected \{figure"),
        ([{"figure": "a", "value": "fast"}], "value of 'a' must be a number, got 'fast'"),
        ([{"figure": "a", "value": True}], "must be a number"),
        ([{"figure": "a", "value": 1}, {"figure": "a", "value": 2}], "row 1: figure 'a' appears twice"),
    ],
)
def test_a_wrong_result_is_named(tmp_path: Path, rows: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_figures(write(tmp_path / "r.json", rows))


def test_a_missing_or_torn_result_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no benchmark result .*none\.json"):
        read_figures(tmp_path / "none.json")
    (tmp_path / "torn.json").write_text("[{")
    with pytest.raises(ValueError, match="is not JSON"):
        read_figures(tmp_path / "torn.json")
