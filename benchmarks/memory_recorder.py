"""What it costs to record memory: rows of benchmarks/memory.py.

| id              | value                                                                                          |
|-----------------|------------------------------------------------------------------------------------------------|
| recorder        | time of torch tensors that come from the pool, are written and go, with its recorder / without |
| recorder_core   | time of an allocation and its free inside the core alone, with the recorder / without          |
| recorder_stacks | time of the default training step with every allocation recorded with its stack / without      |

In turns, one thread; minima for the first two, medians for the last. The first two replay a training step's trace, the
first at a 1024th of its sizes, as tensors in host memory (DLPack). No stacks are taken there.
"""

import itertools
import statistics
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import train as train_benchmark
from oarlock import _native
from oarlock.memory import Pool, empty, record
from oarlock.train.build import build_model, decoder_config, prepare_data
from oarlock.train.config import load_config
from oarlock.train.optim import build_optimizers

ROOT = Path(__file__).parents[1]
Events = list[tuple[int, int]]


def rows(harness: str, events: Events, capacity: int, *, quick: bool) -> list[dict[str, Any]]:
    """All three.

    Args:
        harness: the C++ program that replays a trace in the pool and in a peer.
        events: allocations (id << 1, bytes) and frees (id << 1 | 1, 0).
        capacity: bytes of its pools.
        quick: fewer turns.
    """
    return [
        _tensors_row(events, num_turns=3 if quick else 10),
        _core_row(harness, events, capacity, num_turns=10 if quick else 40),
        _stacks_row(num_rounds=3 if quick else 8),
    ]


def _tensors_row(events: Events, num_turns: int) -> dict[str, Any]:
    pool = Pool(1 << 30, driver="host")
    held: dict[int, torch.Tensor] = {}

    def replay() -> float:
        began = time.perf_counter()
        for event, size in events:
            if event & 1:
                del held[event >> 1]
            else:
                held[event >> 1] = empty(pool, (size // 1024 + 1,), dtype=torch.uint8).fill_(1)
        return time.perf_counter() - began

    replay()  # maps the pages
    took: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(num_turns):
        took[False].append(replay())
        with record(pool):
            took[True].append(replay())
    pool.close()
    off, on = min(took[False]), min(took[True])
    pairs = len(events) / 2
    return _row("recorder", on / off, f"{on / pairs * 1e6:.2f} us / {off / pairs * 1e6:.2f} us a tensor")


def _core_row(harness: str, events: Events, capacity: int, num_turns: int) -> dict[str, Any]:
    start = "    MapCore map(capacity);"
    assert start in harness
    harness = harness.replace(
        start,
        "    PoolCore map(library, capacity);\n"
        '    void* const found = dlsym(library, "oarlock_pool_record");\n'
        "    const auto record = reinterpret_cast<decltype(&oarlock_pool_record)>(found);\n"
        "    if (record(map.pool, 1 << 20) != OARLOCK_OK) std::abort();",
    )
    with tempfile.TemporaryDirectory() as folder:
        source, program, data = (Path(folder) / name for name in ("replay.cpp", "replay", "trace"))
        source.write_text(harness)
        data.write_bytes(b"".join(struct.pack("<QQ", *event) for event in events))
        options = ["-std=c++17", "-O3", "-DNDEBUG", "-pthread", f"-I{ROOT / 'native'}"]
        subprocess.run(["g++", *options, source, "-o", program, "-ldl"], check=True)
        command = [program, _native.library_path(), data, str(capacity), str(num_turns)]
        off, on = map(float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    return _row("recorder_core", on / off, f"{on:.0f} ns / {off:.0f} ns, an allocation and its free")


def _stacks_row(num_rounds: int) -> dict[str, Any]:
    _native.keep_freed_memory()  # as a training run does
    config = load_config(train_benchmark.CONFIG, ["--data.cache", str(ROOT / ".cache" / "oarlock")])
    data = prepare_data(config.data, config.model)
    architecture = decoder_config(config.model, data.vocab_size, config.data.sequence_length)
    model = build_model(config, architecture, torch.device("cpu"))
    batches = itertools.cycle(train_benchmark.first_batches(data, config))
    optimizers = build_optimizers(model, config.optimizer)

    def step() -> float:
        began = time.perf_counter()
        train_benchmark.our_loss(model, next(batches)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.clip_norm)
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
        return time.perf_counter() - began

    for group in (group for optimizer in optimizers.values() for group in optimizer.param_groups):
        group["lr"] = 1e-4
    recorder = record(stacks=True)
    with recorder:
        step()  # compiles and fills caches
    step()
    off, on = [], []
    for _ in range(num_rounds):
        off.append(step())
        with recorder:
            recorder.watch(model, optimizers.values())
            on.append(step())
    taken, bare = statistics.median(on), statistics.median(off)
    return _row("recorder_stacks", taken / bare, f"{taken * 1e3:.0f} ms / {bare * 1e3:.0f} ms a step")


def _row(figure: str, value: float, detail: str) -> dict[str, Any]:
    return {"figure": figure, "value": round(value, 4), "detail": detail}
