"""The recorder of a pool: what it tells is what the pool did, also amid frees and once the ring is full."""

import contextlib
import os
import random
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oarlock.memory import OutOfMemoryError, Pool, PoolRecorder, Recording, record, region
from oarlock.memory.events import Action, BlockState
from oarlock.memory.intervals import intervals
from oarlock.memory.mapped import mapped_ranges

PAGE = 4096


def actions(recording: Recording) -> list[str]:
    return [Action(action).name for action in recording.events["action"].tolist()]


def blocks(recording: Recording, *states: BlockState) -> dict[int, int]:
    chosen = recording.blocks[np.isin(recording.blocks["state"], states)]
    return dict(zip(chosen["addr"].tolist(), chosen["size"].tolist(), strict=True))


def check(recording: Recording) -> None:
    """Events and blocks agree: replayed to the end, both have the same allocations and the same pages."""
    lives = intervals(recording)
    at = lives.live_at(lives.num_events - 1) if lives.num_events else np.arange(len(lives))
    live = dict(zip(lives.addr[at].tolist(), lives.size[at].tolist(), strict=True))
    assert live == blocks(recording, BlockState.LIVE, BlockState.PENDING)
    assert len(at) == len(live)
    pending = {int(lives.addr[row]) for row in at.tolist() if lives.freed[row] < lives.num_events}
    assert pending >= set(blocks(recording, BlockState.PENDING)) - {0}
    # At every moment allocations lie apart.
    for event in range(0, lives.num_events, max(1, lives.num_events // 20)):
        rows = lives.live_at(event)
        order = np.argsort(lives.addr[rows])
        start, size = lives.addr[rows][order], lives.size[rows][order]
        assert (start[:-1] + size[:-1] <= start[1:]).all()
    ends = recording.blocks["addr"] + recording.blocks["size"]
    assert (ends[:-1] <= recording.blocks["addr"][1:]).all()
    assert (recording.events["t_ns"][1:] >= recording.events["t_ns"][:-1]).all()


def test_allocations_frees_and_moves_of_pages() -> None:
    with Pool(4 * PAGE, driver="sim", page_bytes=PAGE) as pool, record(pool) as recorder:
        pieces = [pool.malloc(PAGE) for _ in range(4)]
        pool.free(pieces[0])
        pool.free(pieces[2])
        pool.malloc(2 * PAGE)
        recording = recorder.recording()
        check(recording)
        mapped = mapped_ranges(recording)
        assert mapped.bytes_after(len(recording)).max() == 4 * PAGE
        moved = recording.events[(recording.events["action"] == Action.MAP) & (recording.events["detail"] == 1)]
        assert int(moved["size"].sum()) == pool.stats().moved_pages * PAGE > 0
        assert recording.capacity == 4 * PAGE
    assert actions(recording)[:2] == ["MAP", "ALLOC"]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3), st.booleans())
def test_any_program_with_streams_pins_and_failures(seed: int, num_streams: int, ring: bool) -> None:
    """Random calls, some of them failing; snapshots in between agree with themselves, whatever is pending."""
    choose = random.Random(seed)
    with Pool(24 * PAGE, driver="sim", page_bytes=PAGE) as pool:
        live: list[int] = []
        pinned: list[int] = []
        for _ in range(choose.randrange(20)):  # before the recorder is there
            live.append(pool.malloc(choose.randrange(1, PAGE)))
        with record(pool, num_events=1 if ring else 100_000) as recorder:
            for step in range(1500 if ring else 150):
                kind = choose.random()
                stream = choose.randrange(num_streams)
                if kind < 0.05:
                    pool.hold(stream, choose.random() < 0.5)
                elif kind < 0.5:
                    with contextlib.suppress(OutOfMemoryError):
                        live.append(pool.malloc(choose.choice((100, 600, PAGE, 3 * PAGE)), stream=stream))
                elif kind < 0.55 and live:
                    pinned.append(choose.choice(live))
                    pool.pin(pinned[-1], "test")
                elif kind < 0.65 and pinned:
                    pool.unpin(pinned.pop(choose.randrange(len(pinned))))
                elif kind < 0.7:
                    pool.trim()
                elif kind < 0.75 and live:
                    pool.record_stream(choose.choice(live), stream)
                elif live:
                    pool.free(live.pop(choose.randrange(len(live))), stream=stream)
                if step % (97 if ring else 29) == 0:
                    check(recorder.recording())
            recording = recorder.recording()
            check(recording)
            stats = pool.stats()
            at_end = mapped_ranges(recording).bytes_after(len(recording))
            if len(recording):
                assert int(at_end[-1]) == stats.reserved_bytes - stats.spare_bytes
            assert sum(blocks(recording, BlockState.LIVE).values()) == stats.live_bytes
            if ring and recorder.num_events() > 1024:
                assert len(recording) == 1024
                assert recording.num_dropped == recorder.num_events() - 1024


def test_what_other_streams_still_use_is_pending_until_they_are_done() -> None:
    with Pool(8 * PAGE, driver="sim", page_bytes=PAGE) as pool, record(pool) as recorder:
        a = pool.malloc(PAGE, stream=1)
        pool.hold(2)
        pool.record_stream(a, 2)
        pool.free(a, stream=1)
        middle = recorder.recording()
        assert blocks(middle, BlockState.PENDING) == {a: PAGE}
        assert actions(middle)[-1] == "FREE_REQUESTED"
        check(middle)
        pool.hold(2, False)
        after = recorder.recording()
        assert blocks(after, BlockState.PENDING) == {}
        assert actions(after)[-1] == "FREE_COMPLETED"
        check(after)


def test_stacks_names_and_a_region() -> None:
    with Pool(16 * PAGE, driver="sim", page_bytes=PAGE) as pool:
        early = pool.malloc(100)
        with record(pool, stacks=True, min_stack_bytes=1000) as recorder:
            with region("work") as r:
                large, small = pool.malloc(2 * PAGE), pool.malloc(10)
                recorder.name(large, "weights")
                pool.free(early)
            pool.free(small)
        recording = recorder.recording()
        with pytest.raises(ValueError, match="nothing records memory"), region("later"):
            pass
    assert (r.num_allocs, r.num_frees, r.live_delta) == (2, 1, 2 * PAGE)
    assert (r.largest_before, r.largest_after) == (15 * PAGE, 13 * PAGE)
    assert [(s.size, s.name) for s in r.survivors] == [(2 * PAGE, "weights"), (10, "")]
    assert r.survivors[0].stack[0].filename == __file__
    assert r.survivors[1].stack == ()
    row = recording.blocks[recording.blocks["addr"] == large][0]
    assert recording.names[row["name"]] == "weights"
    assert recording.place(row["stack"]).startswith("test_pool_recorder.py:")
    assert len(recorder.recording(recorder.recording().num_dropped + 3)) == len(recording) - 3


def test_running_out_writes_a_file_that_the_error_names(tmp_path: Path) -> None:
    path = tmp_path / "oom.npz"
    with Pool(4 * PAGE, driver="sim", page_bytes=PAGE) as pool, record(pool, on_oom=path):
        addr = pool.malloc(3 * PAGE)
        with pytest.raises(OutOfMemoryError, match=re.escape(f"{path} shows what memory was taken by")):
            pool.malloc(2 * PAGE)
        with pytest.raises(OutOfMemoryError, match="shows"):
            pool.malloc(1 << 62)
    recording = Recording.load(path)
    ooms = recording.events[recording.events["action"] == Action.OOM]
    assert ooms["size"].tolist() == [2 * PAGE, 1 << 62]
    assert blocks(recording, BlockState.LIVE) == {addr: 3 * PAGE}


def test_threads_write_one_order() -> None:
    with Pool(64 << 20, driver="sim", page_bytes=PAGE) as pool, record(pool) as recorder:

        def work(seed: int) -> None:
            choose = random.Random(seed)
            mine: list[int] = []
            for _ in range(400):
                if mine and choose.random() < 0.5:
                    pool.free(mine.pop())
                else:
                    mine.append(pool.malloc(choose.randrange(1, 3 * PAGE)))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            check(recorder.recording())
        for thread in threads:
            thread.join()
        check(recorder.recording())
        assert int((recorder.recording().events["action"] <= Action.FREE_COMPLETED).sum()) == 1600


def test_misuse_is_told() -> None:
    with Pool(4 * PAGE, driver="sim", page_bytes=PAGE) as pool:
        with record(pool) as recorder:
            with pytest.raises(ValueError, match="recorded already"), record(pool):
                pass
            with pytest.raises(ValueError, match="not a live allocation"):
                recorder.name(12345, "x")
        with pytest.raises(ValueError, match="does not record"):
            recorder.annotate("x")
        with pytest.raises(ValueError, match="num_events must be at least 1"):
            PoolRecorder(pool, num_events=0)


def test_a_child_process_and_a_closed_pool_tell_nothing() -> None:
    pool = Pool(4 * PAGE, driver="host", page_bytes=PAGE)
    with record(pool) as recorder:
        pool.malloc(100)
        child = os.fork()
        if child == 0:
            os._exit(0 if len(recorder.recording()) == 0 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert len(recorder.recording()) == 2
        pool.close()
        assert len(recorder.recording()) == 0
