"""Saves in the background: what is saved is what was there at the call, and no failure is lost or published."""

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from oarlock import checkpoint
from oarlock.checkpoint import CheckpointError, Shard, load_checkpoint, save_checkpoint
from oarlock.checkpoint.background import LINE
from oarlock.checkpoint.content import Content
from process_group import SOURCE, run_ranks


class Gate:
    """Holds the background back before it writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.error: BaseException | None = None
        write = Content.write

        def held(content: Content, *arguments: Any) -> Any:
            assert threading.current_thread() is not threading.main_thread()
            assert self.open.wait(60)
            if self.error is not None:
                raise self.error
            return write(content, *arguments)

        monkeypatch.setattr(Content, "write", held)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def test_what_changes_meanwhile_is_not_saved(tmp_path: Path, gate: Gate, device: torch.device) -> None:
    odd = torch.arange(24.0, device=device).view(4, 6).mT[1:, ::2]  # strides, and a conjugate view
    tensors = {"w": torch.arange(5.0, device=device), "odd": odd, "z": torch.tensor([1 + 2j], device=device).conj()}
    expected = {name: tensor.clone().cpu() for name, tensor in tensors.items()}
    state, rank_state, config = {"list": [1, 2]}, {"r": [3]}, tmp_path / "config.json"
    config.write_text("{}")
    pending = save_checkpoint(
        *(tmp_path / "c", 1),
        tensors={"model": tensors},
        state=state,
        rank_state=rank_state,
        rank_tensors={"rng": {"seed": tensors["w"]}},
        files={"config.json": config},
        wait=False,
    )
    assert repr(pending) == "PendingSave(step=1, running)"
    assert not pending.done()
    with pytest.raises(TimeoutError):
        pending.result(timeout=0)
    for tensor in tensors.values():
        tensor.fill_(-1)
    state["list"].append(3)
    rank_state["r"].append(4)
    config.write_text("changed")
    gate.open.set()
    saved = load_checkpoint(pending.result())
    assert repr(pending) == "PendingSave(step=1, saved)"
    found = saved.tensors("model")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert torch.equal(saved.tensors("rng", rank=0)["seed"], expected["w"])
    assert (saved.state, saved.rank_state(0)) == ({"list": [1, 2]}, {"r": [3]})
    assert saved.file("config.json").read_text() == "{}"


def test_two_copies_take_turns(tmp_path: Path, gate: Gate) -> None:
    w = torch.zeros(1000)
    pending = [save_checkpoint(tmp_path, step, tensors={"m": {"w": w.fill_(step)}}, wait=False) for step in (1, 2)]
    threading.Timer(0.3, gate.open.set).start()
    began = time.monotonic()
    pending.append(save_checkpoint(tmp_path, 3, tensors={"m": {"w": w.fill_(3)}}, wait=False))
    assert time.monotonic() - began > 0.1, "the third waits for memory"
    memory = {arena._memory.data_ptr() for arena in LINE._arenas}
    path = save_checkpoint(tmp_path, 4, tensors={"m": {"w": w[:3].fill_(4)}}, hf={"m": "w -> v"}, wait=False).result()
    assert memory == {arena._memory.data_ptr() for arena in LINE._arenas}, "memory is used again"
    assert torch.equal(load_checkpoint(path).tensors("m")["w"], torch.full((3,), 4.0))
    for step, save in zip((1, 2, 3), pending, strict=True):
        assert torch.equal(load_checkpoint(save.result()).tensors("m")["w"], torch.full((1000,), float(step)))


@pytest.mark.parametrize("wait", [True, False])
def test_a_failure_is_told_once(tmp_path: Path, gate: Gate, wait: bool) -> None:
    gate.open.set()
    gate.error = OSError(28, "No space left on device")
    asked = save_checkpoint(tmp_path, 1, tensors={"m": {"w": torch.ones(2)}}, wait=False)
    with pytest.raises(CheckpointError, match=r"saving step 1 into .* are untouched: No space left on device"):
        asked.result()
    assert repr(asked) == "PendingSave(step=1, failed)"
    forgotten = save_checkpoint(tmp_path, 2, tensors={"m": {"w": torch.ones(2)}}, wait=False)
    while not forgotten.done():
        time.sleep(0.01)
    gate.error = None
    with pytest.raises(CheckpointError, match=r"the save of step 2 in the background failed: .*No space left"):
        save_checkpoint(tmp_path, 3, tensors={}, wait=wait)
    assert os.listdir(tmp_path) == []
    checkpoint.finish_saves()  # it has been told
    save_checkpoint(tmp_path, 3, tensors={"m": {"w": torch.ones(2)}}, wait=False).result()
    assert os.listdir(tmp_path) == ["step-00000003"]
    for finish in (checkpoint.PendingSave.result, lambda _: checkpoint.finish_saves()):
        again = save_checkpoint(tmp_path, 3, tensors={}, wait=False)
        with pytest.raises(CheckpointError, match="a checkpoint of step 3 exists"):
            finish(again)
    with pytest.raises(TypeError, match="which JSON cannot hold"):  # mistakes of the caller are told at once
        save_checkpoint(tmp_path, 4, tensors={}, state=object(), wait=False)


@pytest.mark.parametrize("wait", [True, False])
def test_nothing_of_the_caller_is_kept(tmp_path: Path, wait: bool) -> None:
    """Neither by a cycle, which would wait for the garbage collector, nor by the background."""
    model = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    tensors = {"m": model.state_dict(), "o": checkpoint.optimizer_tensors(optimizer, model.named_parameters())}
    alive = [weakref.ref(value) for value in (model, optimizer, *optimizer.state[model.weight].values())]
    gc.collect()
    gc.disable()
    try:
        pending = save_checkpoint(tmp_path, 1, tensors=tensors, hf={"m": ""}, wait=wait)
        with pytest.raises(ValueError, match="step must be"):
            save_checkpoint(tmp_path, -1, tensors=tensors)
        del model, optimizer, tensors
        assert [ref() for ref in alive] == [None] * len(alive)
    finally:
        gc.enable()
    if not wait:
        pending.result()


EXIT = """
import resource, sys, torch
from oarlock.checkpoint import save_checkpoint
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
w = torch.ones(5000, 8)
tensors = {"model": {f"w{i}": w[i] for i in range(5000)}}
pending = save_checkpoint(sys.argv[1], 1, tensors=tensors, wait=False)
w.zero_()
pending = save_checkpoint(sys.argv[1], 1, tensors=tensors, wait=False)
sys.exit(3)
"""


def test_python_waits_before_it_exits(tmp_path: Path) -> None:
    """With 5,000 tensors and 256 file descriptors. The second save fails, because the step exists."""
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", EXIT, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert result.returncode == 3, result.stderr
    assert result.stderr.startswith("oarlock: the save of step 1 in the background failed: saving step 1"), (
        result.stderr
    )
    assert os.listdir(tmp_path) == ["step-00000001"]
    found = load_checkpoint(tmp_path / "step-00000001").tensors("model")
    assert len(found) == 5000
    assert all(bool((tensor == 1).all()) for tensor in found.values())


FORK = """
import os, sys, torch
from pathlib import Path
from oarlock.checkpoint import save_checkpoint

def save(root):
    return save_checkpoint(root, 1, tensors={"m": {"w": torch.ones(1 << 22)}}, wait=False)

pending = save(sys.argv[1])
child = os.fork()
if child == 0:
    save(sys.argv[2])
    sys.exit(4)  # after what it began itself, not after what its parent does
_, status = os.waitpid(child, 0)
pending.result()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_process_has_saves_of_its_own(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    roots = [tmp_path / "parent", tmp_path / "child"]
    result = subprocess.run([sys.executable, "-c", FORK, *roots], capture_output=True, text=True, env=environment,
                            timeout=60)  # fmt: skip
    assert result.returncode == 4, result.stderr
    for root in roots:
        assert load_checkpoint(root / "step-00000001").tensors("m")["w"].all()


def together(root: str) -> list[str]:
    """While the ranks talk to each other about something else; then one rank fails, and one dies."""
    dist.init_process_group("gloo")
    rank, messages = dist.get_rank(), []
    local = torch.full((3, 4), float(rank))

    def save(step: int, **options: Any) -> checkpoint.PendingSave:
        shard = Shard.box(local, (6, 4), (3 * rank, 0))
        return save_checkpoint(
            root, step, tensors={"m": {"w": shard, "same": torch.ones(5)}}, wait=False, keep_last=2, **options
        )

    pending = []
    for step in range(1, 5):
        local.fill_(step + rank)
        pending.append(save(step, hf={"m": "w^T -> v"} if step == 4 else None))
        local.fill_(-1)
        for _ in range(20):
            dist.all_reduce(torch.ones(3))
    assert [save.result().name for save in pending] == [f"step-{step:08d}" for step in range(1, 5)]
    write = Content.write
    if rank == 1:
        Content.write = lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    failed = save(5)
    while not failed.done():
        time.sleep(0.01)
    Content.write = write
    dist.barrier()
    try:
        save(6)
    except CheckpointError as error:
        messages.append(str(error))
    save(7).result()
    alone = [dist.new_group([member]) for member in range(2)][rank]
    own = save_checkpoint(f"{root}/{rank}", 1, tensors={"m": {"w": local}}, wait=False, group=alone).result()
    assert load_checkpoint(own).world_size == 1
    dist.destroy_process_group()
    return messages


def test_two_ranks(tmp_path: Path) -> None:
    ours, theirs = run_ranks(2, together, tmp_path)
    assert ours == theirs
    assert ours[0].startswith("the save of step 5 in the background failed: saving step 5 into")
    assert "rank 1: No space left on device" in ours[0]
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "step-00000004", "step-00000007"]
    found = load_checkpoint(tmp_path / "step-00000004").tensors("m")
    assert torch.equal(found["w"], torch.cat([torch.full((3, 4), 4.0), torch.full((3, 4), 5.0)]))
