"""Snapshots in torch's form: torch's module and a replay as its viewer does it accept ours, and we read them back."""

import contextlib
import io
import json
import pickle
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.cuda import _memory_viz

from large_snapshot import write_large_snapshot
from oarlock.memory import (
    Pool,
    Recording,
    memory_summary,
    read_torch_snapshot,
    record,
    region,
    window,
    write,
)
from oarlock.memory.events import Action, BlockState
from oarlock.memory.intervals import intervals
from oarlock.memory.mapped import mapped_ranges
from oarlock.memory.plain_pickle import PickleError, PlainReader
from oarlock.memory.torch_snapshot import torch_snapshot

PAGE = 2 << 20


def busy_pool(num_events: int = 1 << 20, seed: int = 0, steps: int = 400) -> Recording:
    """Pages move, streams and pins keep memory, and a free is pending at the end."""
    choose = random.Random(seed)
    with Pool(24 * PAGE, driver="sim", page_bytes=PAGE) as pool, record(pool, num_events=num_events, stacks=True) as r:
        live: list[int] = []
        with region("program"):
            for _ in range(steps):
                stream = choose.randrange(2)
                if live and choose.random() < 0.5:
                    addr = live.pop(choose.randrange(len(live)))
                    if choose.random() < 0.3:
                        pool.record_stream(addr, 1)
                    pool.free(addr)
                elif pool.largest() > 3 * PAGE:
                    live.append(pool.malloc(choose.choice((1000, PAGE // 3, PAGE, 3 * PAGE)), stream=stream))
        pool.hold(1)
        waiting = pool.malloc(PAGE)
        pool.record_stream(waiting, 1)
        pool.free(waiting)
        return r.recording()


def replay_backwards(snapshot: dict[str, Any]) -> int:
    """The rules of torch's viewer, which goes from the end to the first event; returns the most bytes of blocks."""
    segments = sorted((s["address"], s["total_size"]) for s in snapshot["segments"])
    blocks = {
        b["address"]: b["size"] for s in snapshot["segments"] for b in s["blocks"] if b["state"].startswith("active")
    }
    for segment in snapshot["segments"]:
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
        assert at == segment["address"] + segment["total_size"]
    most = sum(blocks.values())
    trace = snapshot["device_traces"][0]
    assert [e["time_us"] for e in trace] == sorted(e["time_us"] for e in trace)
    for event in reversed(trace):
        addr, size = event["addr"], event["size"]
        if event["action"] == "free_completed":
            assert addr not in blocks
            blocks[addr] = size
        elif event["action"] == "free_requested":
            assert addr in blocks  # the viewer crashes where it is not
        elif event["action"] == "alloc":
            assert blocks.pop(addr) == size
        elif event["action"] == "segment_unmap":
            merged: list[tuple[int, int]] = []
            for start, length in sorted([*segments, (addr, size)]):
                if merged and sum(merged[-1]) == start:
                    merged[-1] = (merged[-1][0], merged[-1][1] + length)
                else:
                    merged.append((start, length))
            segments = merged
        elif event["action"] == "segment_map":
            (inside,) = [s for s in segments if s[0] <= addr and addr + size <= sum(s)]
            segments.remove(inside)
            parts = [(inside[0], addr - inside[0]), (addr + size, sum(inside) - addr - size)]
            segments = sorted([*segments, *(part for part in parts if part[1])])
        for block, length in blocks.items():
            assert any(s[0] <= block and block + length <= sum(s) for s in segments)
        most = max(most, sum(blocks.values()))
    return most


@pytest.mark.parametrize(("num_events", "seed"), [(1 << 20, 0), (1 << 20, 1), (1, 2), (1, 3)])
def test_torch_and_its_viewer_accept_a_pool(tmp_path: Path, num_events: int, seed: int) -> None:
    """Also in the middle of frees, and where the ring has lost the beginning."""
    recording = busy_pool(num_events, seed, steps=400 if num_events > 1 else 2500)
    assert (recording.num_dropped > 0) == (num_events == 1)
    write(recording, tmp_path / "s.pickle")
    snapshot = pickle.loads((tmp_path / "s.pickle").read_bytes())
    assert replay_backwards(snapshot) == intervals(recording).live_bytes().max()
    states = {block["state"] for segment in snapshot["segments"] for block in segment["blocks"]}
    assert "active_pending_free" in states
    assert "allocated" in _memory_viz.segsum(snapshot)
    assert "MEM[" in _memory_viz.trace(snapshot)
    for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "</html>" in plot(snapshot) or "script" in plot(snapshot)
    if num_events > 1:
        stages = [(note["name"], note["stage"]) for note in snapshot["external_annotations"]]
        assert stages == [("program", "START"), ("program", "END")]


def test_torch_and_its_viewer_accept_plain_tensors() -> None:
    with record(stacks=True) as recorder:
        kept = [torch.ones(n * 1000) for n in range(1, 9)]
        total = sum(tensor.sum() for tensor in kept)
        del kept[::2]
        del total
        snapshot = torch_snapshot(recorder.recording())
    assert replay_backwards(snapshot) == intervals(recorder.recording()).live_bytes().max()
    assert _memory_viz.segsum(snapshot)
    assert "test_torch_snapshot.py" in json.dumps(snapshot["device_traces"][0][0]["frames"])


def test_what_was_written_reads_back(tmp_path: Path) -> None:
    before = busy_pool()
    after = read_torch_snapshot(write(before, tmp_path / "s.pickle"))
    ours, theirs = intervals(before), intervals(after)
    assert theirs.live_bytes().max() == ours.live_bytes().max()
    mapped = [mapped_ranges(recording).bytes_after(len(recording)).max() for recording in (before, after)]
    assert mapped[0] == mapped[1]
    counts = [
        [int((r.events["action"] == a).sum()) for a in (Action.ALLOC, Action.MAP, Action.UNMAP)]
        for r in (before, after)
    ]
    assert counts[0] == counts[1]
    taken = np.isin(before.blocks["state"], (BlockState.LIVE, BlockState.PENDING))
    again = np.isin(after.blocks["state"], (BlockState.LIVE, BlockState.PENDING))
    for field in ("addr", "size", "requested", "state"):
        assert before.blocks[field][taken].tolist() == after.blocks[field][again].tolist()
    places = [
        {r.place(n) for n in r.events["stack"][r.events["action"] == Action.ALLOC].tolist()} for r in (before, after)
    ]
    assert places[0] == places[1] != {""}


def test_snapshots_of_older_torch(tmp_path: Path) -> None:
    """Blocks without addresses, frames in a history, frees in one step, two devices; any protocol."""
    frames = [{"filename": "a.py", "line": 3, "name": "f"}]
    block = {"size": 1 << 20, "state": "active_allocated", "history": [{"addr": 1, "frames": frames, "real_size": 9}]}
    segment = {
        "address": 1 << 21,
        "total_size": 2 << 20,
        "stream": 7,
        "blocks": [block, {"size": 1 << 20, "state": "inactive"}],
    }
    event = {"addr": 1 << 21, "size": 1 << 20, "stream": 7, "frames": frames, "time_us": 5}
    traces = [[], [{**event, "action": "segment_alloc"}, {**event, "action": "alloc"}, {**event, "action": "free"}]]
    snapshot = {"segments": [{**segment, "device": 1}, {**segment, "device": 0}], "device_traces": traces}
    for protocol in (2, 3, 4, 5):
        (tmp_path / "s.pickle").write_bytes(pickle.dumps(snapshot, protocol))
        recording = read_torch_snapshot(tmp_path / "s.pickle")
        assert [Action(a).name for a in recording.events["action"][:3].tolist()] == ["MAP", "ALLOC", "FREE_COMPLETED"]
        assert recording.blocks["addr"].tolist() == [2 << 20, 3 << 20]
        assert recording.place(int(recording.blocks["stack"][0])) == "a.py:3 f"
        assert recording.source == "s.pickle, device 1"
        assert len(read_torch_snapshot(tmp_path / "s.pickle", device=0)) == 0
        with pytest.raises(ValueError, match="nothing is told of device 5, but of 0, 1"):
            read_torch_snapshot(tmp_path / "s.pickle", device=5)


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("run",))


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
def test_nothing_is_run(tmp_path: Path, protocol: int, capsys: pytest.CaptureFixture[str]) -> None:
    for value in (
        Hostile(),
        {"segments": [Hostile()], "device_traces": []},
        {"a": np.int64(3)},
        {1, 2} if protocol == 4 else Hostile(),
    ):
        (tmp_path / "s.pickle").write_bytes(pickle.dumps(value, protocol))
        with pytest.raises(ValueError, match=r"is not a snapshot of memory of torch.*nothing was run"):
            read_torch_snapshot(tmp_path / "s.pickle")
    assert capsys.readouterr().out == ""


def test_damaged_files_are_refused_whatever_the_byte(tmp_path: Path) -> None:
    whole = pickle.dumps(torch_snapshot(busy_pool(steps=12)))
    path = tmp_path / "s.pickle"
    choose = random.Random(0)
    for _ in range(150):
        cut = choose.randrange(len(whole))
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="is not a snapshot"):
            read_torch_snapshot(path)
        damaged = bytearray(whole)
        damaged[cut] ^= 1 << choose.randrange(8)
        path.write_bytes(damaged)
        with contextlib.suppress(ValueError):  # and nothing else
            read_torch_snapshot(path)
    for value in ([], {}, {"segments": 3}, {"segments": [{}]}, {"segments": [], "device_traces": [[3]]}, 5, None):
        path.write_bytes(pickle.dumps(value))
        with pytest.raises(ValueError, match="is not a snapshot"):
            read_torch_snapshot(path)


def test_plain_objects_read_as_pickle_reads_them() -> None:
    choose = random.Random(1)

    def value(depth: int) -> Any:
        kind = choose.randrange(9 if depth else 6)
        leaves = (choose.randrange(300), -choose.randrange(1 << 70), "ä" * choose.randrange(40), None, 2.5, True)
        if kind < 6:
            return leaves[kind]
        if kind == 6:
            return [value(depth - 1) for _ in range(choose.choice((0, 1, 3, 1001)) if depth < 3 else 3)]
        if kind == 7:
            return tuple(value(depth - 1) for _ in range(choose.randrange(5)))
        return {f"k{choose.randrange(50)}": value(depth - 1) for _ in range(choose.choice((0, 1, 5)))}

    for number in range(200):
        shared = value(2)
        whole = [shared, value(3), shared, {"a": shared}]
        data = pickle.dumps(whole, 2 + number % 4)

        assert PlainReader(io.BytesIO(data), lambda found: found).read() == whole
    with pytest.raises(PickleError, match="deep"):
        PlainReader(io.BytesIO(b"\x80\x04" + b"]" + b"(]" * 100), lambda found: found).read()


def test_a_window_is_what_the_whole_was_then() -> None:
    whole = busy_pool()
    times = (whole.events["t_ns"] - whole.events["t_ns"][0]) / 1e9
    first, last = len(whole) // 3, 2 * len(whole) // 3
    part = window(whole, float(times[first]), float(times[last]))
    a = int(np.searchsorted(whole.events["t_ns"], whole.events["t_ns"][first]))
    assert len(part) <= last - a
    assert part.events["t_ns"][0] == whole.events["t_ns"][first]
    live, mapped = intervals(whole).live_bytes(), mapped_ranges(whole).bytes_after(len(whole))
    assert intervals(part).live_bytes().tolist() == live[a : a + len(part)].tolist()
    assert mapped_ranges(part).bytes_after(len(part)).tolist() == mapped[a : a + len(part)].tolist()
    assert replay_backwards(torch_snapshot(part)) == live[a : a + len(part)].max()
    with pytest.raises(ValueError, match="no event lies between"):
        window(whole, 1e6, 2e6)


def test_the_summary_says_what_the_recording_does() -> None:
    recording = busy_pool()
    text = memory_summary(recording)
    lives = intervals(recording)
    assert f"{len(lives.live_at(len(recording) - 1)):,}" in text
    assert re.search(r"freed, but still in use +2\.00 MiB", text)
    assert "mapped" in text
    assert "test_torch_snapshot.py" in text


def test_a_file_of_megabytes(tmp_path: Path) -> None:
    size, peak = write_large_snapshot(tmp_path / "s.pickle", 16_000)
    assert pickle.loads((tmp_path / "s.pickle").read_bytes())["device_traces"][0][15_999]["action"] == "free_completed"
    recording = read_torch_snapshot(tmp_path / "s.pickle")
    assert size > 1_000_000
    assert len(recording) == 16_000
    assert intervals(recording).live_bytes().max() == peak


@pytest.mark.large
def test_a_gigabyte_takes_a_part_of_its_size(tmp_path: Path) -> None:
    size, peak = write_large_snapshot(tmp_path / "s.pickle", 14_400_000)
    assert size > 1_000_000_000
    program = (
        "import resource, sys; from oarlock.memory import read_torch_snapshot, write;"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "r = read_torch_snapshot(sys.argv[1]);"
        "print(len(r), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "s.pickle"], capture_output=True, text=True, check=True
    )
    num_events, taken = map(int, done.stdout.split())
    assert num_events == 14_400_000
    assert taken < 2 * size  # 40 bytes an event, twice for a moment, and a memo; objects would take ten times that
    assert peak == 8 << 20
