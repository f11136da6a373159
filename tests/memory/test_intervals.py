"""Lives of allocations and mapped ranges, against a replay with dictionaries."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from oarlock.memory.events import BLOCK, EVENT, Action, BlockState, Mark, Recording
from oarlock.memory.intervals import intervals
from oarlock.memory.mapped import mapped_ranges
from oarlock.memory.picture import largest_gap

PAGE = 4096


def events(rows: list[tuple[int, int, int, int]]) -> np.ndarray:
    """(action, addr, size, name)"""
    made = np.zeros(len(rows), EVENT)
    for field, column in zip(
        ("action", "addr", "size", "name"), zip(*rows, strict=True) if rows else ((),) * 4, strict=True
    ):
        made[field] = column
    made["t_ns"] = np.arange(len(rows)) * 1000
    return made


def blocks(rows: list[tuple[int, int, int]]) -> np.ndarray:
    """(addr, size, state)"""
    made = np.zeros(len(rows), BLOCK)
    for i, (addr, size, state) in enumerate(sorted(rows)):
        made[i]["addr"], made[i]["size"], made[i]["requested"], made[i]["state"] = addr, size, size, state
    return made


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_lives_are_those_of_a_replay(data: st.DataObject) -> None:
    """A window of random events: allocations at free places, frees at once or in two steps, names."""
    live: dict[int, tuple[int, int]] = {}  # addr -> (size, state)
    rows: list[tuple[int, int, int, int]] = []
    snapshots: list[dict[int, int]] = []
    for _ in range(data.draw(st.integers(0, 40))):
        free = [a for a in range(1, 9) if a not in live]
        actions = ["alloc"] if free else []
        actions += ["free", "request", "name"] if any(state == 0 for _, state in live.values()) else []
        actions += ["complete"] if any(state == 3 for _, state in live.values()) else []
        action = data.draw(st.sampled_from(actions))
        if action == "alloc":
            addr = data.draw(st.sampled_from(free))
            live[addr] = (data.draw(st.integers(1, 9)), 0)
            rows.append((Action.ALLOC, addr, live[addr][0], 1))
        else:
            wanted = 3 if action == "complete" else 0
            addr = data.draw(st.sampled_from([a for a, (_, state) in live.items() if state == wanted]))
            size = live[addr][0]
            if action == "name":
                rows.append((Action.ANNOTATION, addr, size, 2))
            elif action == "request":
                live[addr] = (size, 3)
                rows.append((Action.FREE_REQUESTED, addr, size, 1))
            else:
                del live[addr]
                rows.append((Action.FREE_COMPLETED, addr, size, 1))
        snapshots.append({addr: size for addr, (size, _) in live.items()})
    cut = data.draw(st.integers(0, len(rows)))
    window = events(rows)[cut:]
    window["detail"][window["action"] == Action.ANNOTATION] = Mark.BLOCK
    end = blocks(
        [(addr, size, BlockState.LIVE if state == 0 else BlockState.PENDING) for addr, (size, state) in live.items()]
    )
    lives = intervals(Recording(window, end, names=["", "op", "tensor"]))
    for event in range(len(window)):
        at = lives.live_at(event)
        assert dict(zip(lives.addr[at].tolist(), lives.size[at].tolist(), strict=True)) == snapshots[cut + event]
        assert len(at) == len(snapshots[cut + event])
    assert lives.live_bytes().tolist() == [sum(s.values()) for s in snapshots[cut:]]
    for addr, begin, freed, stop in zip(
        lives.addr.tolist(), lives.begin.tolist(), lives.freed.tolist(), lives.end.tolist(), strict=True
    ):
        mine = [r for r in range(max(begin, 0), min(stop + 1, len(window))) if int(window["addr"][r]) == addr]
        requests = [r for r in mine if window["action"][r] == Action.FREE_REQUESTED]
        if begin >= 0:
            assert freed == (requests[0] if requests else stop)


def test_a_name_given_later_counts() -> None:
    window = events([(Action.ALLOC, 8, 4, 1), (Action.ANNOTATION, 8, 4, 2), (Action.FREE_COMPLETED, 8, 4, 1)])
    window["detail"][1] = Mark.BLOCK
    lives = intervals(Recording(window, blocks([]), names=["", "op", "weight"]))
    assert (lives.name.tolist(), lives.begin.tolist(), lives.end.tolist()) == ([2], [0], [2])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_mapped_ranges_are_those_of_a_page_table(data: st.DataObject) -> None:
    pages: set[int] = set(data.draw(st.sets(st.integers(0, 11), max_size=8)))
    rows, tables = [], []
    for _ in range(data.draw(st.integers(0, 12))):
        first, count = data.draw(st.integers(0, 11)), data.draw(st.integers(1, 4))
        run = set(range(first, min(first + count, 12)))
        if run <= pages:
            pages -= run
            rows.append((Action.UNMAP, first * PAGE, len(run) * PAGE, 0))
        elif not run & pages:
            pages |= run
            rows.append((Action.MAP, first * PAGE, len(run) * PAGE, 0))
        else:
            continue
        tables.append(set(pages))
    cut = data.draw(st.integers(0, len(rows)))
    end = blocks([(p * PAGE, PAGE, BlockState.FREE if p in pages else BlockState.HOLE) for p in range(12)])
    recording = Recording(events(rows)[cut:], end, page_bytes=PAGE)
    mapped = mapped_ranges(recording)
    assert mapped.bytes_after(len(rows) - cut).tolist() == [len(table) * PAGE for table in tables[cut:]]
    lives = intervals(recording)
    for event in range(len(rows) - cut):
        at = (mapped.begin <= event) & (event < mapped.end)
        found = {
            p
            for a, s in zip(mapped.addr[at].tolist(), mapped.size[at].tolist(), strict=True)
            for p in range(a // PAGE, (a + s) // PAGE)
        }
        assert found == tables[cut + event]
        gap, largest = largest_gap(lives, mapped, event)
        runs, last = [], -2
        for page in sorted(found):
            runs[-1:] = [runs[-1] + 1] if page == last + 1 else [*runs[-1:], 1]
            last = page
        assert (gap, largest) == (len(found) * PAGE, max(runs, default=0) * PAGE)
