"""The recipes of recipes/checkpoints, by the commands that they document."""

import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from oarlock.checkpoint import list_checkpoints, load_checkpoint

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes" / "checkpoints"
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(ROOT / "src"),
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
}


def losses_in(output: str) -> dict[int, float]:
    """Step -> loss, as a recipe prints them."""
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+) loss (\S+)$", output, re.MULTILINE)}


Run = Callable[..., dict[int, float]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a recipe in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(recipe: str, *words: str) -> dict[int, float]:
        monkeypatch.setattr(sys, "argv", [recipe, *words])
        runpy.run_path(str(RECIPES / recipe), run_name="__main__")
        return losses_in(capsys.readouterr().out)

    return run


def torchrun(recipe: str, *words: str, folder: Path) -> dict[int, float]:
    """Runs a recipe on two ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(RECIPES / recipe), *words]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return losses_in(done.stdout)


def test_the_commands_are_documented() -> None:
    for recipe in RECIPES.glob("*.py"):
        text = recipe.read_text(encoding="utf-8")
        assert f"recipes/checkpoints/{recipe.name}" in text
        assert f"checkpoints/{recipe.name}" in (ROOT / "recipes" / "README.md").read_text(encoding="utf-8")


def test_a_plain_loop_goes_on_bitwise_after_a_kill(tmp_path: Path, run: Run) -> None:
    command = [sys.executable, "-u", str(RECIPES / "plain_loop.py"), "killed", "--steps", "100000", "--every", "5"]
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step ") and list_checkpoints(tmp_path / "killed"):
                break
        process.send_signal(signal.SIGKILL)
    [*_, last] = list_checkpoints(tmp_path / "killed")
    step = load_checkpoint(last).step
    again = run("plain_loop.py", "killed", "--steps", str(step + 3))
    assert list(again) == [step + 1, step + 2, step + 3]
    straight = run("plain_loop.py", "straight", "--steps", str(step + 3), "--every", "1000")
    assert again == {number: straight[number] for number in again}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_the_trainer_goes_on_bitwise(tmp_path: Path, run: Run) -> None:
    """Weights, optimizer and the losses that the Trainer logs; attention has dropout."""
    straight = run("trainer_callback.py", "straight")
    assert list(straight) == list(range(1, 9))
    run("trainer_callback.py", "run", "--steps", "4")
    again = run("trainer_callback.py", "run")
    assert {step: again[step] for step in range(5, 9)} == {step: straight[step] for step in range(5, 9)}
    assert [path.name for path in list_checkpoints(tmp_path / "run")] == ["step-00000004", "step-00000008"]
    first, second = (load_checkpoint(tmp_path / name / "step-00000008") for name in ("straight", "run"))
    for group in ("model", "optimizer"):
        ours, theirs = first.tensors(group), second.tensors(group)
        assert all(ours[name].equal(tensor) for name, tensor in theirs.items())
    AutoModelForCausalLM.from_pretrained(second.path)


@pytest.mark.parametrize(
    "layouts", [("fsdp", "tensor"), pytest.param(("tensor", "fsdp"), marks=pytest.mark.slow)], ids="-".join
)
def test_from_one_layout_to_another(layouts: tuple[str, str], tmp_path: Path) -> None:
    """The losses are those of one process, to the rounding of another order of sums."""
    recipe = "fsdp_to_tensor_parallel.py"
    found = torchrun(recipe, "run", layouts[0], "--steps", "3", folder=tmp_path)
    found |= torchrun(recipe, "run", layouts[1], "--steps", "6", folder=tmp_path)
    block = runpy.run_path(str(RECIPES / recipe))["Block"]
    torch.manual_seed(0)
    model = nn.Sequential(block(16), block(16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(6):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
        loss = (model(x) - x.roll(1, dims=1)).square().mean()
        assert found[step + 1] == pytest.approx(loss.item(), rel=1e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
