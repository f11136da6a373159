"""A writer killed at any moment: every checkpoint that can be seen is complete, and none that was returned is lost.

One helper process imports torch once and forks the writers, which only ever run with one thread.
"""

import contextlib
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from oarlock.checkpoint import CheckpointError, directory, list_checkpoints, load_checkpoint, save_checkpoint
from oarlock.checkpoint.directory import step_of

SOURCE = Path(__file__).parents[2] / "src"

LIMIT = 60  # seconds for any one answer of a writer; the slowest takes one

FORKER = """
import faulthandler, os, signal, sys
import torch
from pathlib import Path
from oarlock.checkpoint import Shard, list_checkpoints, save_checkpoint
from oarlock.checkpoint.directory import step_of

torch.set_num_threads(1)
faulthandler.register(signal.SIGUSR1)
VISIBLE_TO_A_KILL = {"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.listdir", "os.scandir"}

def in_two_pieces(w):
    half = len(w) // 2
    return Shard.blocks(w, w.shape, 0, [(half, len(w)), (0, half)]) if half else w

def write(root, die_at, num_saves, mode):
    events = 0
    def hook(event, arguments):
        nonlocal events
        if event in VISIBLE_TO_A_KILL:
            events += 1
            if events == die_at:
                os.kill(os.getpid(), 9)
    if die_at:
        sys.addaudithook(hook)
    step = max((step_of(p) for p in list_checkpoints(root)), default=0)
    pending = []
    for count in range(num_saves):
        step += count % 3 != 2  # every third save replaces a checkpoint
        w = torch.full((500 * (step % 7),), float(step))
        tensors = {"model": {"w": w}, "optimizer": {"m": torch.full((9,), step)}}
        options = {"state": {"step": step, "count": count}, "keep_last": 2, "overwrite": True}
        if mode == "plain":
            save_checkpoint(root, step, tensors=tensors, **options)
            say("saved", step)
            continue
        tensors["model"]["w"], tensors["moments"] = in_two_pieces(w), {"w": in_two_pieces(w.clone())}
        options |= {"hf": {"model": "w -> v"}, "max_shard_bytes": 500}
        pending.append((step, save_checkpoint(root, step, tensors=tensors, wait=False, **options)))
        w.fill_(-1)
        while len(pending) > 1 or pending and count == num_saves - 1:
            step_of_first, first = pending.pop(0)
            first.result()
            say("saved", step_of_first)

def say(word, number):
    # One system call: a kill between the pieces that print() writes would join them with another process's line.
    os.write(1, f"{word} {number}\\n".encode())

say("ready", os.getpid())
for line in sys.stdin:
    root, die_at, num_saves, mode = line.rsplit(maxsplit=3)
    begin, release = os.pipe()
    child = os.fork()
    if not child:
        os.read(begin, 1)
        write(Path(root), int(die_at), int(num_saves), mode)
        os._exit(0)
    say("started", child)
    os.write(release, b"!")
    say("ended", os.waitpid(child, 0)[1])
    os.close(begin)
    os.close(release)
"""


class Forker:
    """Starts writers; `finish` returns the last step that a writer reported as saved, and how it ended."""

    def __init__(self) -> None:
        environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", FORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._child = 0
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._line() == ["ready", str(self.process.pid)]

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._lines.put(line)

    def _line(self) -> list[str]:
        try:
            return self._lines.get(timeout=LIMIT).split()
        except queue.Empty:
            for pid in {self.process.pid, self._child or self.process.pid}:
                show_where_it_hangs(pid)
            pytest.fail(f"no answer from the writer within {LIMIT} s; its stack is in the captured stderr")

    def start(self, root: Path, die_at: int = 0, num_saves: int = 10**6, mode: str = "plain") -> int:
        assert self.process.stdin
        self.process.stdin.write(f"{root} {die_at} {num_saves} {mode}\n")
        self.process.stdin.flush()
        word, child = self._line()
        assert word == "started"
        self._child = int(child)
        return self._child

    def finish(self) -> tuple[int | None, int]:
        saved = None
        while True:
            word, value = self._line()
            if word == "ended":
                self._child = 0
                return saved, int(value)
            saved = int(value)

    def close(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            for pid in {self._child, self.process.pid} - {0}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait(10)
        self._reader.join(10)
        self.process.stdout.close()


def show_where_it_hangs(pid: int) -> None:
    """Its Python stack (the process prints that itself), and what it waits for in the kernel."""
    with contextlib.suppress(OSError):
        waits_for = Path(f"/proc/{pid}/wchan").read_text()
        state = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("State"))
        print(f"process {pid}: {state}, waits in {waits_for or 'nothing'}", file=sys.stderr)
        os.kill(pid, signal.SIGUSR1)
        time.sleep(0.5)


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    forker = Forker()
    yield forker
    forker.close()


def check_all(root: Path) -> list[int]:
    """Load and verify every visible checkpoint; each tensor was filled with its step."""
    steps = []
    for path in list_checkpoints(root):
        checkpoint = load_checkpoint(path)
        step = checkpoint.step
        assert step == checkpoint.state["step"] == step_of(path)
        w = checkpoint.tensors("model")["w"]
        assert w.shape == (500 * (step % 7),)
        assert bool((w == step).all())
        assert bool((checkpoint.tensors("optimizer")["m"] == step).all())
        if "moments" in checkpoint.groups():
            assert torch.equal(checkpoint.tensors("moments")["w"], w)
        steps.append(step)
    return steps


def assert_clean_after_next_save(root: Path, step: int) -> None:
    save_checkpoint(root, step, tensors={"g": {"w": torch.zeros(1)}})
    assert all(name.startswith("step-") and "." not in name for name in os.listdir(root))


@pytest.mark.parametrize(("mode", "times", "seconds"), [("plain", 50, 0.06), ("background", 12, 0.9)])
def test_kill_at_random_moments(tmp_path: Path, forker: Forker, mode: str, times: int, seconds: float) -> None:
    rng = random.Random(0)
    last = 0
    for _ in range(times):
        child = forker.start(tmp_path, mode=mode)
        time.sleep(rng.uniform(0.0, seconds))
        os.kill(child, signal.SIGKILL)
        saved, _ = forker.finish()
        steps = check_all(tmp_path)
        last = max(last, saved or 0)
        assert max(steps, default=0) >= last, "a checkpoint that save_checkpoint returned is gone"
    forker.start(tmp_path, num_saves=2, mode=mode)
    forker.finish()
    assert len(check_all(tmp_path)) == 2
    assert_clean_after_next_save(tmp_path, 10**6)


@pytest.mark.parametrize(("mode", "stride"), [("plain", 1), ("background", 9)])
def test_kill_before_every_step_of_the_file_system(tmp_path: Path, forker: Forker, mode: str, stride: int) -> None:
    """Four saves, one of them a replacement, killed before the first, second, ... open, rename, mkdir or removal."""
    die_at, status = 0, 1
    while status:
        die_at += stride
        root = tmp_path / str(die_at)
        forker.start(root, die_at, num_saves=4, mode=mode)
        saved, status = forker.finish()
        steps = check_all(root)
        assert max(steps, default=0) >= (saved or 0)
        if die_at % 5 == 0:
            assert_clean_after_next_save(root, 10)
    assert die_at > 60, "the audit hook sees the file system"
    assert saved == 3


def test_a_live_writer_is_left_alone(tmp_path: Path) -> None:
    """A second run in the same folder is refused while the first one saves, and removes nothing of its files."""
    with directory.locked(tmp_path):
        unfinished = directory.new_temporary(tmp_path, 1)
        with pytest.raises(CheckpointError, match=r"another process is saving into .*; give every run"):
            save_checkpoint(tmp_path, 2, tensors={})
        assert os.listdir(tmp_path) == [unfinished.name]
    assert_clean_after_next_save(tmp_path, 2)
