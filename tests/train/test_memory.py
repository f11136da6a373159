"""A run that records its memory writes it at the end, and where memory runs out; the run itself stays the same."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from oarlock.memory import OutOfMemoryError, Recording
from oarlock.memory.intervals import intervals
from oarlock.train import load_config, train
from oarlock.train.loop import Trainer
from tiny_run import recorded

OPTIONS = ("--train.steps", "3", "--checkpoint.every", "0", "--train.eval_every", "0")


def test_a_run_is_recorded_with_names_and_spans(tiny: Callable[..., Path], tmp_path: Path) -> None:
    path = tmp_path / "made" / "memory.npz"
    train(load_config(tiny("plain"), OPTIONS))
    result = train(load_config(tiny("told"), [*OPTIONS, "--memory.record", str(path)]))
    assert recorded(tmp_path / "told") == recorded(tmp_path / "plain")
    assert result.step == 3
    recording = Recording.load(path)
    lives = intervals(recording)
    names = {recording.names[name] for name in lives.name.tolist()}
    assert {"embed_tokens.weight", "embed_tokens.weight.grad", "embed_tokens.weight.exp_avg"} <= names
    assert {"evaluation", "step 1", "step 3", "forward", "backward", "optimizer"} <= set(recording.names)
    assert any("decoder.py" in recording.place(number) for number in lives.stack.tolist())


def test_running_out_of_memory_names_the_file(
    tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "memory.html"
    monkeypatch.setattr(Trainer, "_clip_gradients", lambda _: torch.empty(1 << 58))
    with pytest.raises(OutOfMemoryError, match=r"can't allocate memory.*\n.*memory\.html shows what") as error:
        train(load_config(tiny(), [*OPTIONS, "--memory.record", str(path)]))
    assert isinstance(error.value.__cause__, RuntimeError)
    assert "Out of memory" in path.read_text()


def test_a_file_of_an_unknown_kind_is_refused_before_the_run(tiny: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match=r"memory\.record = 'memory\.txt' must end in one of \.html"):
        load_config(tiny(), ["--memory.record", "memory.txt"])
