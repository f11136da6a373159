"""Traces of allocations: what the recorder sees of a torch program, the file, and columns that make no sense."""

import gc
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oarlock.memory import Recording, Trace, TraceRecorder, record
from oarlock.memory.events import BLOCK, EVENT, Action


def made(events: list[tuple[int, int, int]]) -> Trace:
    action, number, size = np.array(events, np.int64).reshape(-1, 3).T
    zeros = np.zeros(len(events), np.uint32)
    return Trace(action.astype(np.uint8), number.astype(np.uint32), size.copy(), zeros, zeros.astype(np.uint16))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_every_storage_once_from_its_birth_to_its_last_view(device: str) -> None:
    with TraceRecorder(device) as recorder:
        a = torch.empty(100, device=device)
        view = a[3:].view(-1)
        b = a + 1
        del a
        with recorder.label("late"), recorder.stream(2):
            c = torch.cat([b, b])
            del view, b
        recorder.use(c, 7)
        torch.empty(0, device=device)
    del c
    trace = recorder.trace()
    assert list(
        zip(trace.action.tolist(), trace.id.tolist(), trace.size.tolist(), trace.stream.tolist(), strict=True)
    ) == [
        (0, 0, 400, 0),
        (0, 1, 400, 0),
        (0, 2, 800, 2),
        (1, 0, 0, 0),
        (1, 1, 0, 0),
        (2, 2, 0, 7),
        (1, 2, 0, 2),
    ]
    assert [trace.labels[i] for i in trace.label] == ["", "", "late", "late", "late", "", ""]
    assert trace.peak_bytes() == 512 + 512 + 1024
    assert trace.live_bytes(1)[-1] == 0


def test_a_training_step_on_meta_is_the_same_on_the_cpu() -> None:
    """Sizes and lifetimes do not depend on the device, as long as no operation is composed differently there."""

    def record(device: str) -> Trace:
        with TraceRecorder(device) as recorder:
            model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.SiLU(), torch.nn.Linear(128, 64)).to(device)
            for _ in range(2):
                loss = model(torch.ones(32, 64, device=device)).square().mean()
                loss.backward()
                del loss
                for parameter in model.parameters():
                    parameter.grad = None
        gc.collect()
        return recorder.trace()

    on_cpu, on_meta = record("cpu"), record("meta")
    assert on_meta.peak_bytes() == pytest.approx(on_cpu.peak_bytes(), rel=0.25)
    assert on_meta.peak_bytes() > 4 * (2 * 64 * 128)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 10**12)), max_size=60), st.data())
def test_live_bytes_and_the_file(tmp_path_factory: pytest.TempPathFactory, drawn: list, data: st.DataObject) -> None:
    events, live, now, expected = [], [], {}, []
    for action, size in drawn:
        if action == 0 or not live:
            number = sum(event[0] == 0 for event in events)
            live.append(number)
            now[number] = -(-size // 512) * 512
            events.append((0, number, size))
        else:
            number = data.draw(st.sampled_from(live))
            if action == 1:
                live.remove(number)
                del now[number]
            events.append((action, number, 0))
        expected.append(sum(now.values()))
    trace = made(events)
    assert trace.live_bytes().tolist() == expected
    assert trace.peak_bytes() == max(expected, default=0)
    path = tmp_path_factory.mktemp("trace") / "a.npz"
    trace.save(path)
    again = Trace.load(path)
    assert again.action.tolist() == trace.action.tolist()
    assert again.size.tolist() == trace.size.tolist()
    assert again.labels == trace.labels
    assert [p.name for p in path.parent.iterdir()] == ["a.npz"]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([(3, 0, 1)], "none of 0, 1, 2"),
        ([(0, 0, 0)], "event 0 of 1 allocates no bytes"),
        ([(0, 1, 5)], "does not count its allocation on"),
        ([(0, 0, 5), (1, 4, 0)], "event 1 of 2 names an allocation that never happens"),
        ([(1, 0, 0), (0, 0, 5)], "event 0 of 2 comes before its allocation"),
        ([(0, 0, 5), (1, 0, 0), (1, 0, 0)], "event 2 of 3 comes after its free"),
        ([(0, 0, 5), (1, 0, 0), (2, 0, 0)], "event 2 of 3 comes after its free"),
    ],
)
def test_columns_that_contradict_each_other(events: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(events)


def test_files_that_are_no_traces(tmp_path: Path) -> None:
    text, other, later = tmp_path / "text", tmp_path / "other.npz", tmp_path / "later.npz"
    text.write_text("hello")
    np.savez(other, a=np.zeros(3))
    made([(0, 0, 5)]).save(later)
    with zipfile.ZipFile(later) as file:
        columns = {Path(name).stem: np.load(file.open(name)) for name in file.namelist()}
    np.savez(later, **{**columns, "version": np.int64(9)})
    for path, why in ((text, "text is not a trace"), (other, "lacks action"), (later, "version is 9")):
        with pytest.raises(ValueError, match=why):
            Trace.load(path)
    with pytest.raises(FileNotFoundError):
        Trace.load(tmp_path / "none")


def test_an_unseen_tensor() -> None:
    known = torch.empty(3, device="meta")
    with pytest.raises(ValueError, match=r"has not seen the tensor of shape \[3\]"):
        TraceRecorder().use(known, 1)


@pytest.mark.parametrize("since", [0, 1, 37, 200, 399])
def test_a_recording_without_its_beginning_has_the_same_live_bytes(since: int) -> None:
    """What the whole recording says is live, counted event by event, is what the trace of its end says."""
    draw = random.Random(3)
    with record() as recorder:
        kept: list[torch.Tensor] = []
        while recorder.num_events() < 400:
            if kept and draw.random() < 0.45:
                kept.pop(draw.randrange(len(kept)))
            kept.append(torch.empty(draw.randrange(1, 4000), dtype=torch.uint8))
    whole, end = recorder.recording(), recorder.recording(since)
    live: dict[int, int] = {}
    live_at_start: dict[int, int] = {}
    expected = []
    for event in whole.events:
        if event["action"] == Action.ALLOC:
            live[int(event["addr"])] = int(event["size"])
        elif event["action"] == Action.FREE_COMPLETED:
            del live[int(event["addr"])]
        expected.append(sum(-(-size // 512) * 512 for size in live.values()))
        if len(expected) == since:
            live_at_start = dict(live)
    trace = Trace.of(end)
    before = len(trace) - len(end)
    assert before == len(live_at_start)
    assert trace.live_bytes()[before:].tolist() == expected[since:]


def test_a_free_that_was_lost_is_before_the_next_allocation_at_the_address() -> None:
    events = np.zeros(4, EVENT)
    events["action"] = [Action.ALLOC, Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED]
    events["addr"], events["size"], events["stream"] = 4096, [512, 1024, 1024, 1024], [0, 1, 2, 2]
    trace = Trace.of(Recording(events, np.zeros(0, BLOCK), streams=(7, 8, 9)))
    assert trace.action.tolist() == [0, 1, 0, 1]
    assert trace.id.tolist() == [0, 0, 1, 1]
    assert trace.stream.tolist() == [0, 0, 1, 2]
    assert trace.live_bytes().tolist() == [512, 0, 1024, 0]


@pytest.mark.parametrize("load", [Trace.load, Recording.load])
def test_what_is_no_zip_is_told_without_advice_to_unpickle(tmp_path: Path, load: Callable[[Path], object]) -> None:
    (tmp_path / "a.npz").write_text("<html>")
    with pytest.raises(ValueError, match=r"a\.npz is not a .*: it does not begin as a \.npz file does"):
        load(tmp_path / "a.npz")
