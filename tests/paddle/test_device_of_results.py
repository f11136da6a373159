"""Functions keep to the device of their tensors: run on fake CUDA tensors, which need no GPU and refuse two devices."""

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import oarlock.paddle as paddle
from paddle_cases import calls, environment

TOPICS = ("edges_math", "fft", "linalg", "logic", "math", "reduction", "search")
MAKING = re.compile(r"grad\(|paddle\.(zeros|ones|eye|to_tensor|full)|fftfreq|out=|broadcast_shape|iinfo|finfo")
OF_SHAPES = {"is_empty", "numel", "rank", "shape"}  # these tell of shapes, in host memory
CALLS_OF_EACH = 6


def _chosen() -> list[str]:
    counts: Counter[str] = Counter()
    found = []
    for topic in TOPICS:
        for expression in calls(topic):
            name = re.search(r"paddle\.([\w.]+)", expression)
            if name is None or MAKING.search(expression) or name.group(1) in OF_SHAPES:
                continue
            counts[name.group(1)] += 1
            if counts[name.group(1)] <= CALLS_OF_EACH:
                found.append(expression)
    return found


def _tensors() -> dict[str, Any]:
    def empty(dtype: torch.dtype) -> Any:
        return lambda *shape: torch.empty(shape, dtype=dtype, device="cuda")

    def t(values: Any, dtype: str | None = None) -> torch.Tensor:
        array = np.array(values) if dtype is None else np.array(values, dtype)
        return torch.empty(array.shape, dtype=getattr(torch, str(array.dtype)), device="cuda")

    kinds = {"f": "float32", "d": "float64", "u": "float32", "i": "int64", "b": "bool", "c": "complex64"}
    made = {name: empty(getattr(torch, dtype)) for name, dtype in kinds.items()}
    return {**environment(paddle), **made, "t": t, "s": lambda n: torch.empty(n, n, device="cuda")}


@pytest.mark.filterwarnings("ignore")
def test_results_are_on_the_device_of_the_tensors() -> None:
    wrong, right = [], 0
    paddle.patch_tensor()
    with FakeTensorMode():
        names = _tensors()
        for expression in _chosen():
            try:
                made = eval(expression, dict(names))
            except Exception as error:  # values, which fake tensors lack, may be asked for
                if "device" in str(error) and "cpu" in str(error) and "cuda" in str(error):
                    wrong.append(f"{expression}: {str(error)[:200]}")
                continue
            if isinstance(made, torch.Tensor):
                right += made.device.type == "cuda"
                wrong += [] if made.device.type == "cuda" else [f"{expression}: on {made.device}"]
    paddle.unpatch_tensor()
    assert not wrong, "\n".join(wrong)
    assert right > 500
