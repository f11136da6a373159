"""Every recorded call gives what Paddle 3.3.1 gave: dtype, shape and values."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import oarlock.paddle as paddle
from paddle_cases import GOLDEN, evaluate

ANSWERS: dict[str, Any] = {
    expression: answer
    for path in sorted(GOLDEN.glob("*.json"))
    for expression, answer in json.loads(path.read_text(encoding="utf-8")).items()
}


@pytest.fixture(autouse=True)
def _patched() -> Iterator[None]:
    paddle.patch_tensor()
    yield
    paddle.unpatch_tensor()


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert isinstance(found, dict), f"not a tensor: {found}"
        assert (found["dtype"], found["shape"]) == (expected["dtype"], expected["shape"])
        # Kernels sum in other orders: float32 results agree to a few units in the last place of sums of ~100 terms.
        half = expected["dtype"] in ("float16", "bfloat16")
        np.testing.assert_allclose(found["data"], expected["data"], rtol=1e-2 if half else 2e-5, atol=2e-6)
    elif isinstance(expected, list):
        assert isinstance(found, list)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=2e-5)
    else:
        assert found == expected


@pytest.mark.parametrize("expression", ANSWERS)
def test_recorded_call(expression: str) -> None:
    torch.manual_seed(0)
    assert_same(evaluate(expression, paddle), ANSWERS[expression])
