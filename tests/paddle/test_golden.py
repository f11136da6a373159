"""Every recorded call gives what Paddle 3.3.1 gave: dtype, shape and values."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import oarlock.paddle as paddle
from paddle_cases import GOLDEN, evaluate
from paddle_comparison import assert_all_same

# Recorded calls reach for edges (empty sums, complex to real) of which torch warns once a process.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True, scope="module")
def _patched() -> Iterator[None]:
    paddle.patch_tensor()
    yield
    paddle.unpatch_tensor()


def recorded(expression: str) -> Any:
    torch.default_generator.manual_seed(0)
    return evaluate(expression, paddle)


@pytest.mark.parametrize("topic", sorted({path.stem for path in GOLDEN.glob("*.json")} - {"strict"}))
def test_recorded_calls(topic: str) -> None:
    assert_all_same(json.loads((GOLDEN / f"{topic}.json").read_text(encoding="utf-8")), recorded)
