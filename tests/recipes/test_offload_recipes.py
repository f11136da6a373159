"""The recipes of recipes/offload: the same losses within a budget as without, and the budget is kept."""

import re
import runpy
import sys
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[2] / "recipes" / "offload"


@pytest.mark.parametrize(("recipe", "share"), [("plain_loop.py", "60%"), ("trainer.py", "80%")])
def test_losses_stay_and_the_budget_is_kept(
    recipe: str, share: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def run(budget: str) -> tuple[list[str], list[tuple[int, int]]]:
        monkeypatch.setattr(sys, "argv", [recipe, "--budget", budget])
        runpy.run_path(str(RECIPES / recipe), run_name="__main__")
        output = capsys.readouterr().out
        peaks = [(int(a), int(b)) for a, b in re.findall(r"peak (\d+) of (\d+)$", output, re.MULTILINE)]
        return re.findall(r"^step \d+ loss \S+", output, re.MULTILINE), peaks

    losses, peaks = run(share)
    kept, unplanned = run("200%")
    assert losses == kept
    assert len(losses) >= 3
    assert all(peak <= budget for peak, budget in peaks)
    assert max(peak for peak, _ in peaks) < 0.9 * max(peak for peak, _ in unplanned)
