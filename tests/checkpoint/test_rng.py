"""A restored generator continues the sequence: torch, numpy and Python's random, also through a checkpoint."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from oarlock.checkpoint import capture_rng, load_checkpoint, restore_rng, save_checkpoint


def draw() -> list[float]:
    values = [torch.randn(3).tolist(), torch.randperm(5).tolist(), np.random.standard_normal(3).tolist()]
    return [*values, random.gauss(0, 1), random.random(), np.random.randint(1000)]


@pytest.mark.parametrize("num_before", [0, 1, 2])
def test_the_sequence_continues(tmp_path: Path, num_before: int) -> None:
    """An odd number of Gaussian draws leaves one in numpy's and in Python's cache; both must survive."""
    for _ in range(num_before):
        np.random.standard_normal()
        random.gauss(0, 1)
        torch.rand(1)
    tensors, state = capture_rng()
    path = save_checkpoint(tmp_path, 1, tensors={}, rank_tensors={"rng": tensors}, rank_state={"rng": state})
    expected = [draw(), draw()]
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    assert draw() != expected[0]
    checkpoint = load_checkpoint(path)
    restore_rng(checkpoint.tensors("rng", rank=0), checkpoint.rank_state(0)["rng"])
    assert [draw(), draw()] == expected


def test_capturing_draws_nothing() -> None:
    tensors, state = capture_rng()
    again, same = capture_rng()
    assert state == same
    assert all(torch.equal(tensors[name], again[name]) for name in tensors)


def test_nothing_is_set_if_something_is_wrong() -> None:
    tensors, state = capture_rng()
    expected = draw()
    before, _ = capture_rng()
    with pytest.raises(ValueError, match=r"lacks numpy, state\['python'\]"):
        restore_rng({"torch": tensors["torch"], "python": tensors["python"]}, {"numpy": state["numpy"]})
    with pytest.raises(ValueError, match=r"'python' has shape \(3,\), expected \(625,\)"):
        restore_rng({**tensors, "python": torch.zeros(3, dtype=torch.int64)}, state)
    after, _ = capture_rng()
    assert all(torch.equal(before[name], after[name]) for name in before)
    restore_rng(tensors, state)
    assert draw() == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_cuda_state_without_cuda_is_named() -> None:
    tensors, state = capture_rng()
    with pytest.warns(UserWarning, match=r"CUDA generator state is not used"):
        restore_rng({**tensors, "torch_cuda": torch.zeros(16, dtype=torch.uint8)}, state)


@pytest.mark.gpu
def test_cuda_sequence_continues() -> None:
    torch.rand(1, device="cuda")
    tensors, state = capture_rng()
    expected = torch.rand(5, device="cuda")
    restore_rng(tensors, state)
    assert torch.equal(torch.rand(5, device="cuda"), expected)
    del tensors["torch_cuda"]
    with pytest.warns(UserWarning, match=r"no CUDA generator state"):
        restore_rng(tensors, state)
