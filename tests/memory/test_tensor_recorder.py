"""The recorder of torch's own allocations, against torch's storages and arithmetic."""

import gc

import pytest
import torch
from torch import nn

from oarlock.memory import TensorRecorder, record, region, span
from oarlock.memory.events import Action, Mark
from oarlock.memory.intervals import intervals


def sizes(recorder: TensorRecorder) -> list[tuple[int, int]]:
    events = recorder.recording().events
    return [(int(e["action"]), int(e["size"])) for e in events if e["action"] != Action.ANNOTATION]


def test_allocations_and_frees_come_in_order_views_do_not() -> None:
    with record() as recorder:
        a = torch.ones(100)
        view = a.view(10, 10)[2:].t()
        b = a + 1
        a.add_(1)
        del a
        del view
        del b
    assert sizes(recorder) == [(0, 400), (0, 400), (2, 400), (2, 400)]
    assert recorder.recording().blocks.size == 0


def test_what_lives_at_the_end_is_the_storages_there() -> None:
    with record() as recorder:
        kept = [torch.zeros(n) for n in (3, 50, 700)]
        _ = torch.zeros(9).sum()
        del _
    blocks = recorder.recording().blocks
    assert {(int(b["addr"]), int(b["size"])) for b in blocks} == {
        (t.data_ptr(), t.untyped_storage().nbytes()) for t in kept
    }
    assert (blocks["addr"][1:] > blocks["addr"][:-1]).all()
    del kept  # after the recorder was left: no event
    assert len(recorder.recording()) == 7  # five came, two went


def test_a_storage_that_grows_is_another_allocation() -> None:
    with record() as recorder:
        a = torch.empty(10)
        a.resize_(1000)
        del a
    assert sizes(recorder) == [(0, 40), (2, 40), (0, 4000), (2, 4000)]


def test_the_tensors_of_a_training_step_have_names() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    with record(stacks=True) as recorder:
        recorder.watch(model, [optimizer])
        loss = model(torch.randn(32, 8)).square().mean()
        loss.backward()
        optimizer.step()
    recording = recorder.recording()
    tags = dict(recording.tags.items())
    named = {recording.names[b["name"]]: tags.get(int(b["tag"])) for b in recording.blocks}
    assert named["0.weight"] == named["2.bias"] == "parameter"
    assert named["1.running_mean"] == "buffer"
    assert named["2.weight.grad"] == "gradient"
    assert named["0.weight.exp_avg"] == named["2.bias.exp_avg_sq"] == "optimizer"
    lives = intervals(recording)
    activations = lives.freed_backward & ~lives.born_backward & (lives.tag == 0)
    assert activations.any()  # saved for the backward pass, which frees them
    assert any("Backward0" in recording.names[name] for name in lives.name[lives.born_backward].tolist())
    places = {recording.place(number) for number in lives.stack[lives.stack > 0].tolist()}
    assert any("test_tensor_recorder.py" in place for place in places)
    assert not any(
        "_dynamo" in frame.filename for number in lives.stack.tolist() for frame in recording.stack(number)[:1]
    )


def test_a_tied_or_doubly_wrapped_storage_counts_once_and_hooks_go_away() -> None:
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    with record() as recorder:
        recorder.watch(nn.ModuleList([first, second]))
    assert sizes(recorder) == [(0, 64)]
    first(torch.ones(4)).sum().backward()
    assert sizes(recorder) == [(0, 64)]


def test_meta_tensors_get_addresses_that_do_not_overlap() -> None:
    with record("meta") as recorder, torch.device("meta"):
        a = torch.empty(1 << 30)
        b = torch.empty(1 << 30)
        c = torch.empty(5)
        del b
    assert sizes(recorder) == [(0, 4 << 30), (0, 4 << 30), (0, 20), (2, 4 << 30)]
    blocks = recorder.recording().blocks
    assert blocks["size"].tolist() in ([20, 4 << 30], [4 << 30, 20])
    assert int(blocks["addr"][0] + blocks["size"][0]) <= int(blocks["addr"][1])
    del a, c


def test_only_the_last_events_are_kept_and_the_window_makes_sense() -> None:
    recorder = record(num_events=20_000)
    with recorder:
        kept = torch.zeros(11)
        for n in range(30_000):
            torch.empty(n % 7 + 1)
    recording = recorder.recording()
    assert recorder.num_events() == 60_001
    assert len(recording) == 20_000
    assert recording.num_dropped == 40_001
    lives = intervals(recording)
    assert lives.live_bytes().max() == 44 + 28  # what was made before the window is in it
    assert lives.begin.min() == -1
    del kept


def test_a_region_counts_what_happens_in_it() -> None:
    outside = torch.zeros(1000)
    with record(stacks=True) as recorder:
        recorder.name(outside, "outside")
        with region("work") as r:
            a = torch.ones(256)
            b = a * 2
            del a
            c = b + 1
            del outside
    assert (r.num_allocs, r.alloc_bytes, r.num_frees, r.free_bytes) == (3, 3072, 2, 1024 + 4000)
    assert (r.peak_delta, r.live_delta) == (2048, 2048 - 4000)
    assert sorted((s.size, s.name) for s in r.survivors) == [(1024, "add"), (1024, "mul")]
    assert r.survivors[0].stack[0].filename == __file__
    assert r.complete
    assert "3 allocations of 3.00 KiB" in str(r)
    marks = recorder.recording().events
    marks = marks[marks["action"] == Action.ANNOTATION]["detail"].tolist()
    assert marks == [Mark.BEGIN, Mark.END]
    del b, c


def test_a_region_without_a_recorder_says_what_to_do_a_span_is_nothing() -> None:
    with pytest.raises(ValueError, match="nothing records memory"), region("x"):
        pass
    with span("x"):
        pass


def test_graphs_that_wait_for_the_collector_free_when_it_comes() -> None:
    with record() as recorder:
        loop: list[object] = [torch.ones(64)]
        loop.append(loop)
        del loop
        gc.collect()
    assert sizes(recorder) == [(0, 256), (2, 256)]


def test_devices_that_cannot_be_recorded_are_refused() -> None:
    with pytest.raises(ValueError, match="not of mps"):
        record("mps")
