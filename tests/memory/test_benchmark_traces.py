"""The traces of benchmarks/memory_traces.py: each can be recorded, twice the same, and is what its name says."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from oarlock.memory import Trace


@pytest.fixture(scope="module")
def traces() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "memory_traces", Path(__file__).parents[2] / "benchmarks" / "memory_traces.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["memory_traces"] = module
    spec.loader.exec_module(module)
    return module


def small(traces: ModuleType, name: str) -> Trace:
    sizes = traces.Sizes(
        tokens=64, width=256, expert_width=64, num_layers=4, num_experts=2, top_k=2, num_heads=4, vocabulary=512
    )
    return traces.record(name, sizes, 1)


def test_all_of_them_record(traces: ModuleType) -> None:
    for name in traces.NAMES:
        trace = small(traces, name)
        assert len(trace) > 300
        assert trace.live_bytes()[-1] < trace.peak_bytes(), name
        assert set(np.unique(trace.stream)) == ({0, 1, 2} if name == "three-streams" else {0}), name


def test_the_same_seed_gives_the_same_trace(traces: ModuleType) -> None:
    first, second = small(traces, "varying-length"), small(traces, "varying-length")
    assert first.size.tolist() == second.size.tolist()
    assert first.id.tolist() == second.id.tolist()


def test_schedules_of_the_first_stage(traces: ModuleType) -> None:
    for num_chunks in (1, 2):
        steps = list(traces.schedule(4, num_chunks, 8))
        forward = [(chunk, batch) for is_forward, chunk, batch in steps if is_forward]
        backward = [(chunk, batch) for is_forward, chunk, batch in steps if not is_forward]
        assert sorted(forward) == sorted(backward) == [(c, b) for c in range(num_chunks) for b in range(8)]
        running = np.cumsum([1 if is_forward else -1 for is_forward, _, _ in steps])
        assert running.max() == (4 if num_chunks == 1 else 11)
        assert running[-1] == 0
        for pair in forward:
            assert steps.index((True, *pair)) < steps.index((False, *pair))
