"""How a plain result is compared with a recorded answer of Paddle."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest


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


def assert_all_same(answers: Mapping[str, Any], evaluate: Callable[[str], Any]) -> None:
    """Every expression gives its answer; else all that do not are shown, with what happened."""
    wrong = []
    for expression, answer in answers.items():
        try:
            assert_same(evaluate(expression), answer)
        except Exception as error:
            lines = " ".join(str(error).split())
            wrong.append(f"{expression}\n    {type(error).__name__}: {lines[:300]}")
    assert not wrong, f"{len(wrong)} of {len(answers)} calls\n" + "\n".join(wrong)
