"""`oarlock memory view`: recordings become pages."""

import json
import re
from pathlib import Path

import pytest
import torch

from oarlock.cli.main import main
from oarlock.memory import ALLOCATORS, Pool, TraceRecorder, record, write


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


TEXTS = {"a.html": "<!doctype html>", "a.json": '{"traceEvents": []}', "a.dot": "digraph {}"}


@pytest.mark.parametrize("command", ["view", "summary", "replay"])
@pytest.mark.parametrize(("name", "told"), [("a.html", "HTML"), ("a.json", "JSON"), ("a.dot", "something else")])
def test_a_text_is_no_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, name: str, told: str
) -> None:
    (tmp_path / name).write_text(TEXTS[name])
    assert main(["memory", command, str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert f"{name} is {told}" in error
    assert "not a recording of Oarlock (.npz)" in error


@pytest.mark.parametrize("command", ["view", "summary", "replay"])
def test_a_broken_zip_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    (tmp_path / "a.npz").write_bytes(b"PK nothing")
    assert main(["memory", command, str(tmp_path / "a.npz")]) == 2
    error = capsys.readouterr().err
    assert re.search("is not a (recording of memory|trace of allocations)", error)
    assert error.count("\n") == 1


def test_each_kind_of_file_is_sent_to_its_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with TraceRecorder("meta") as traced:
        torch.ones(1000, device="meta")
    traced.trace().save(tmp_path / "step.npz")
    for command in ("view", "summary"):
        assert main(["memory", command, str(tmp_path / "step.npz")]) == 2
        assert "is a trace of allocations, which `oarlock memory replay` reads" in capsys.readouterr().err
    with record() as recorder:
        torch.ones(1000)
    snapshot = write(recorder.recording(), tmp_path / "s.pickle")
    assert main(["memory", "replay", str(snapshot)]) == 2
    error = capsys.readouterr().err
    assert f"`oarlock memory view {snapshot} --out {tmp_path / 's.npz'}`" in error
    assert main(["memory", "view", str(snapshot), "--out", str(tmp_path / "s.npz")]) == 0
    assert main(["memory", "replay", str(tmp_path / "s.npz"), "--allocator", "caching"]) == 0
    assert "at most 4.00 KiB live" in capsys.readouterr().out  # 4,000 bytes in units of 512


@pytest.mark.parametrize("command", ["view", "summary"])
def test_a_recording_of_one_device_refuses_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with record() as recorder:
        torch.ones(1000)
    recorder.recording().save(tmp_path / "a.npz")
    assert main(["memory", command, str(tmp_path / "a.npz"), "--device", "3"]) == 2
    assert "--device chooses within a snapshot of torch" in capsys.readouterr().err
    assert not (tmp_path / "a.html").exists()


def test_what_was_there_before_a_lost_beginning_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with record() as recorder:
        kept, passing = torch.ones(1 << 18), torch.ones(1 << 16)
        since = recorder.num_events()
        more = kept[: 1 << 17] * 2
        del passing
    path = recorder.recording(since).save(tmp_path / "a.npz")
    assert main(["memory", "replay", str(path), "--allocator", "caching"]) == 0
    replayed = capsys.readouterr().out
    assert "at most 1.75 MiB live" in replayed
    assert "2 allocations of 1.25 MiB from before the first event count as made at the start" in replayed
    assert f"the first {since} events were not kept" in replayed
    assert main(["memory", "summary", str(path)]) == 0
    summary = capsys.readouterr().out
    assert "1.75 MiB" in summary
    assert f"after {since} that are no longer kept" in summary
    assert re.search(r"made before the first event +2\b", summary)
    assert main(["memory", "view", str(path)]) == 0
    page = path.with_suffix(".html").read_text()
    assert "<dt>Allocations</dt><dd>1<small>and 2 from before the first event</small>" in page
    assert main(["memory", "replay", str(recorder.recording().save(path)), "--allocator", "caching"]) == 0
    assert "at most 1.75 MiB live" in (whole := capsys.readouterr().out)
    assert "(" not in whole
    assert more.numel() == 1 << 17


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


def test_one_of_a_kind_is_told_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with record() as recorder:
        kept = torch.ones(1 << 18)
        since = recorder.num_events()
        recorder.annotate("later")
    path = recorder.recording(since).save(tmp_path / "a.npz")
    assert main(["memory", "replay", str(path), "--allocator", "caching"]) == 0
    assert "(1 allocation of 1.00 MiB from before the first event counts as made" in capsys.readouterr().out
    assert main(["memory", "view", str(path)]) == 0
    assert "<small>1 allocation, after event 1</small>" in path.with_suffix(".html").read_text()
    assert kept.numel() == 1 << 18
