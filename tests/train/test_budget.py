"""A run within a budget of memory is the same run; without a plan it fails; its report shows the plan."""

import json
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oarlock.memory import OutOfMemoryError
from oarlock.memory.offload.drift import Drift
from oarlock.train import load_config, train
from oarlock.train.budget import MemoryBudget
from oarlock.train.metrics import read_metrics
from tiny_run import recorded, write_config

OPTIONS = ("--train.steps", "3", "--checkpoint.every", "0", "--train.eval_every", "0", "--train.batch_size", "16")


@pytest.mark.parametrize("more", [(), ("--train.accumulation", "2", "--model.family", "qwen3_moe")])
def test_a_planned_run_is_the_same_run_within_its_budget(
    tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    budgets: list[MemoryBudget] = []
    made = MemoryBudget.__init__

    def noted(self: MemoryBudget, *args: object) -> None:
        made(self, *args)  # type: ignore[arg-type]
        budgets.append(self)

    monkeypatch.setattr(MemoryBudget, "__init__", noted)
    train(load_config(tiny("plain"), [*OPTIONS, *more]))
    train(load_config(tiny("planned"), [*OPTIONS, *more, "--memory.budget", "70%", "--memory.rate", "1e8"]))
    assert recorded(tmp_path / "planned") == recorded(tmp_path / "plain")
    (plan,) = [r for r in read_metrics(tmp_path / "planned") if r.get("event") == "memory_plan"]
    assert 0 < budgets[0].peak_bytes <= plan["budget_bytes"]
    assert budgets[0].peak_bytes == pytest.approx(plan["peak_bytes"], rel=0.02)
    page = (tmp_path / "planned" / "report.html").read_text(encoding="utf-8")
    assert "Memory plan" in page
    assert "What is on the device, when" in page
    for chart in page.split("<figure>")[1:]:
        ET.fromstring(chart.partition("</figure>")[0])


def test_a_budget_below_parameters_gradients_and_states_sends_the_states_out(
    tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run to the bit, with a checkpoint in the middle that another run continues."""
    budgets: list[MemoryBudget] = []
    made = MemoryBudget.__init__

    def noted(self: MemoryBudget, *args: object) -> None:
        made(self, *args)  # type: ignore[arg-type]
        budgets.append(self)

    monkeypatch.setattr(MemoryBudget, "__init__", noted)
    wide = ("--model.hidden_size", "128", "--model.intermediate_size", "512", "--train.batch_size", "2")
    options = [*OPTIONS, *wide, "--checkpoint.every", "2"]
    train(load_config(tiny("plain"), options))
    with pytest.raises(OutOfMemoryError, match="no plan keeps the step within"):
        train(load_config(tiny("refused"), [*options, "--memory.budget", "75%", "--memory.optimizer", "false"]))
    train(load_config(tiny("tiered"), [*options, "--memory.budget", "75%"]))
    assert recorded(tmp_path / "tiered") == recorded(tmp_path / "plain")
    (plan,) = [r for r in read_metrics(tmp_path / "tiered") if r.get("event") == "memory_plan"]
    assert "optimizer states in the second tier" in plan["text"]
    assert 0 < budgets[-1].peak_bytes <= plan["budget_bytes"]
    # What step 2 saved is complete: the third step is the same again.
    shutil.rmtree(tmp_path / "tiered" / "checkpoints" / "step-00000003")
    assert train(load_config(tiny("tiered"), [*options, "--memory.budget", "75%"]), resume="auto").step == 3
    assert recorded(tmp_path / "tiered") == recorded(tmp_path / "plain")


def test_without_a_plan_the_budget_ends_the_run(tiny: Callable[..., Path]) -> None:
    with pytest.raises(OutOfMemoryError, match=r"beyond the cap of .*memory\.budget = 70%; memory\.plan = true"):
        train(load_config(tiny(), [*OPTIONS, "--memory.budget", "70%", "--memory.plan", "false"]))


def test_a_budget_that_no_plan_meets_is_refused_with_the_least_one(tiny: Callable[..., Path]) -> None:
    with pytest.raises(OutOfMemoryError, match=r"no plan keeps the step within .* are needed"):
        train(load_config(tiny(), [*OPTIONS, "--memory.budget", "5%"]))


def test_bad_budgets_are_refused_before_the_run(tiny: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match="budget = 'some'"):
        load_config(tiny(), ["--memory.budget", "some"])
    with pytest.raises(ValueError, match=r"set train\.activation_checkpointing = false"):
        load_config(tiny(), ["--memory.budget", "60%", "--train.activation_checkpointing", "true"])


def test_a_plan_is_made_anew_when_steps_stay_away_from_it() -> None:
    drift = Drift(100, 0.0, 1.0)
    assert not any(drift.update(peak, 0.0) for peak in (100, 101, 120, 100, 101, 100))
    assert [drift.update(130, 0.0) for _ in range(6)].index(True) >= 2
    waiting = Drift(100, 0.1, 1.0)
    assert not any(waiting.update(100, 0.12) for _ in range(9))
    assert any(waiting.update(100, 0.4) for _ in range(9))


def test_the_first_steps_of_a_model_with_experts_are_measured_and_planned_at_a_quantile(
    tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks: list[tuple[int, int, int]] = []
    step = MemoryBudget.step

    @contextmanager
    def noted(self: MemoryBudget, measure: Callable[[], object]) -> Iterator[None]:
        with step(self, measure):
            yield
        assert self._plan is not None
        peaks.append((self.peak_bytes, self._plan.budget, len(self._profiles)))

    monkeypatch.setattr(MemoryBudget, "step", noted)
    options = [*OPTIONS, "--train.steps", "6", "--model.family", "qwen3_moe"]
    train(load_config(tiny("plain"), options))
    train(load_config(tiny("planned"), [*options, "--memory.budget", "75%", "--memory.rate", "1e8"]))
    assert recorded(tmp_path / "planned") == recorded(tmp_path / "plain")
    assert [number for _, _, number in peaks] == [1, 2, 3, 4, 4, 4]
    assert all(peak <= budget for peak, budget, _ in peaks)
    events = [r for r in read_metrics(tmp_path / "planned") if r.get("event") == "memory_plan"]
    assert len(events) == 2


def test_an_error_that_ends_a_run_is_told_in_its_report(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path), ["--train.steps", "2", "--memory.budget", "1KB"])
    with pytest.raises(OutOfMemoryError):
        train(config)
    folder = Path(config.train.out)
    page = (folder / "report.html").read_text()
    assert "0 of 2 steps, ended by an error: OutOfMemoryError: " in page
    assert 'http-equiv="refresh"' not in page
    assert json.loads((folder / "status.json").read_text())["stopped_by"].startswith("OutOfMemoryError: ")
