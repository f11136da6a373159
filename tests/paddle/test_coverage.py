"""The table of coverage claims no more than the tests show, and the page of the docs is that table."""

from pathlib import Path

from oarlock.paddle import coverage
from paddle_coverage import PAGE, collect


def test_no_row_claims_more_than_the_tests_show() -> None:
    found = {row.name: row for row in collect()}
    order = (coverage.TO_COME, coverage.FORMULA, coverage.RECORDED)
    for row in coverage.rows():
        assert order.index(row.state) <= order.index(found[row.name].state), f"{row}: run tests/paddle_coverage.py"
        assert set(row.forms) <= set(found[row.name].forms), f"{row}: run tests/paddle_coverage.py"


def test_the_page_is_made_from_the_table() -> None:
    assert Path(PAGE).read_text(encoding="utf-8") == coverage.page(coverage.rows())


def test_every_announced_function_has_a_state() -> None:
    rows = coverage.rows()
    assert [(row.name, row.group) for row in rows] == coverage.announced()
    assert {row.state for row in rows} <= set(coverage.STATES)
    assert f"{len(rows)} announced functions" in coverage.table(rows)
