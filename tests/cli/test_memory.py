"""`oarlock memory view`: recordings become pages."""

import json
import re
from pathlib import Path

import pytest
import torch

from oarlock.cli.main import main
from oarlock.memory import ALLOCATORS, Pool, record, write


def page_data(page: Path) -> dict:
    found = re.search(r'id="data-1">(.*?)</script>', page.read_text(encoding="utf-8"), re.S)
    assert found is not None
    return json.loads(found.group(1))


def test_a_recording_becomes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with record(stacks=True) as recorder:
        kept = torch.ones(1000)
        recorder.name(kept, "</script>kept<b>")
        _ = kept * 2
        del _
    recorder.recording().save(tmp_path / "a.npz")
    assert main(["memory", "view", str(tmp_path / "a.npz")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "a.html")
    data = page_data(tmp_path / "a.html")
    assert sorted(data["rects"]["h"]) == [4000, 4000]
    assert "</script>kept<b>" in data["names"]
    assert main(["memory", "view", str(tmp_path / "a.npz"), "--out", str(tmp_path / "deep" / "b.html")]) == 0
    assert (tmp_path / "deep" / "b.html").exists()


def test_a_snapshot_becomes_a_page_a_part_of_it_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with record(stacks=True) as recorder:
        for _ in range(20):
            torch.ones(5000) * 2
    snapshot = write(recorder.recording(), tmp_path / "s.pickle")
    assert main(["memory", "view", str(snapshot)]) == 0
    assert page_data(tmp_path / "s.html")["numEvents"] == 120 + 1
    times = recorder.recording().events["t_ns"]
    middle = (int(times[40]) - int(times[0])) / 1e9
    assert main(["memory", "view", str(snapshot), "--from", f"{middle:.9f}", "--out", str(tmp_path / "p.html")]) == 0
    assert 20 <= page_data(tmp_path / "p.html")["numEvents"] <= 110
    assert main(["memory", "view", str(snapshot), "--out", str(tmp_path / "p.json")]) == 0
    trace = json.loads((tmp_path / "p.json").read_text())["traceEvents"]
    assert max(event["args"]["live"] for event in trace if event["name"] == "live bytes") == 40_000
    capsys.readouterr()
    assert main(["memory", "summary", str(snapshot)]) == 0
    assert "test_memory.py" in capsys.readouterr().out
    assert main(["memory", "view", str(snapshot), "--out", str(snapshot)]) == 2
    assert "written over itself" in capsys.readouterr().err


def test_other_files_are_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.npz").write_bytes(b"PK nothing")
    assert main(["memory", "view", str(tmp_path / "a.npz")]) == 2
    assert "is not a recording of memory" in capsys.readouterr().err
    assert main(["memory", "view", str(tmp_path / "missing.npz")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_a_replay_tells_what_each_allocator_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = Pool(64 << 20, driver="sim")
    with record(pool) as recorder:
        pieces = [pool.malloc(10 << 20) for _ in range(4)]
        for piece in pieces[::2]:
            pool.free(piece)
        pool.malloc(20 << 20)
    recorder.recording().save(tmp_path / "a.npz")
    assert main(["memory", "replay", str(tmp_path / "a.npz")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "7 events, at most 40.0 MiB live. Simulated:"
    assert [line.split()[0] for line in lines[1:]] == list(ALLOCATORS)
    assert "oarlock        needs 40.0 MiB, 1.0000 x what is live" in lines[1]
    arguments = ["--capacity", "1.0x", "--allocator", "oarlock", "--allocator", "caching"]
    assert main(["memory", "replay", str(tmp_path / "a.npz"), *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "finishes; beyond the first maps 40.0 MiB mapped, unmapped or copied; 0 stops" in lines[1]
    assert "caching        finishes" in lines[2] or "caching        runs out of memory at event 6" in lines[2]
    for wrong, message in (("much", "like 40GiB"), ("1B", "at least a page")):
        assert main(["memory", "replay", str(tmp_path / "a.npz"), "--capacity", wrong]) == 2
        assert message in capsys.readouterr().err
    assert main(["memory", "replay", str(tmp_path / "a.npz"), "--allocator", "tape"]) == 2
    assert "one of oarlock" in capsys.readouterr().err
