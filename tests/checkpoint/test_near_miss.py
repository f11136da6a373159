"""What is suggested for a name that is not there."""

import time
from pathlib import Path

import pytest
import torch

from oarlock.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from oarlock.checkpoint.near_miss import near_miss, near_names


@pytest.mark.parametrize(
    ("name", "known", "best"),
    [
        ("weigth", ["bias", "weight"], ["weight"]),
        ("w", ["bias", "norm"], []),
        ("layers.7.wq", ["layers.1.w_q", "layers.7.w_q", "layers.7.w_k"], ["layers.7.w_q"]),
        ("w", ["norm", "_orig_mod.w"], ["_orig_mod.w"]),
        ("_orig_mod.h.0._checkpoint_wrapped_module.w", ["h.1.w", "h.0.w"], ["h.0.w"]),
        ("module.w", ["module.v", "w"], ["w"]),
        ("anything", [], []),
    ],
)
def test_the_best_is_found(name: str, known: list[str], best: list[str]) -> None:
    assert near_names(name, known) == best
    assert near_miss(name, known) == (f"did you mean {best[0]!r}?" if best else "")


def test_how_alike_they_must_be_can_be_said() -> None:
    assert near_names("step", ["train_steps"], cutoff=0.6) == []
    assert near_names("step", ["train_steps"], cutoff=0.5) == ["train_steps"]  # 2 * 4 letters of 4 + 11: 0.53


def test_many_names_are_few_forms() -> None:
    names = [f"layers.{layer}.experts.{expert}.{p}" for layer in range(100) for expert in range(256) for p in "ab"]
    start = time.process_time()
    assert near_names("layers.42.expert.200.b", names, count=3)[0] == "layers.42.experts.200.b"
    assert time.process_time() - start < 2, "51,200 names; one by one they take ten times as long"


def test_a_wrapped_model_meets_a_plain_one(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, tensors={"m": {"_orig_mod.w": torch.ones(1)}})
    with pytest.raises(CheckpointError, match=r"have no source: w \(did you mean _orig_mod\.w\?\)"):
        load_checkpoint(path).load("m", {"w": torch.ones(1)})
    with pytest.raises(CheckpointError, match=r"has no tensor 'w'; did you mean '_orig_mod\.w'\?"):
        load_checkpoint(path).source("m").read(["w"])
