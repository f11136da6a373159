"""Every recorded call gives what Paddle 3.3.1 gave: dtype, shape and values."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import oarlock.paddle as paddle
from paddle_cases import GOLDEN, evaluate
from paddle_comparison import assert_same

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
ANSWERS: dict[str, Any] = {
    expression: answer
    for path in sorted(GOLDEN.glob("*.json"))
    if path.stem != "strict"
    for expression, answer in json.loads(path.read_text(encoding="utf-8")).items()
}


@pytest.fixture(autouse=True, scope="module")
def _patched() -> Iterator[None]:
    paddle.patch_tensor()
    yield
    paddle.unpatch_tensor()


@pytest.mark.parametrize("expression", ANSWERS)
def test_recorded_call(expression: str) -> None:
    torch.manual_seed(0)
    assert_same(evaluate(expression, paddle), ANSWERS[expression])
