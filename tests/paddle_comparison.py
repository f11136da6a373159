"""How a plain result is compared with a recorded answer of Paddle."""

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
