"""`--debug.errors true`: the message of a diverged run names the producer, and a run computes the same with it."""

from pathlib import Path

import pytest
import torch

from oarlock.train import load_config, train
from oarlock.train.divergence import NonFiniteLossError
from oarlock.train.loop import Trainer
from tiny_run import write_config


def test_a_diverged_run_names_the_producer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(write_config(tmp_path), ["--debug.errors", "true"])
    step = Trainer._step

    def planted(self: Trainer, *args):
        if self.state.step == 1:
            with torch.no_grad():
                self.model.layers[1].mlp.up_proj.weight[3, 5] = float("nan")
        return step(self, *args)

    monkeypatch.setattr(Trainer, "_step", planted)
    with pytest.raises(NonFiniteLossError) as info:
        train(config)
    assert "outside, first used by layers.1." in str(info.value)
    assert str(info.value).startswith("step 2: ")
    assert ", step 2)" in str(info.value)
    assert "layers.1.mlp.up_proj.weight" in str(info.value)


def test_a_run_computes_the_same_with_it(tmp_path: Path) -> None:
    results = []
    for value in ("false", "true"):
        path = write_config(tmp_path, f"run-{value}")
        results.append(train(load_config(path, ["--train.steps", "3", "--debug.errors", value])).bits_per_byte)
    assert results[0] == results[1]
