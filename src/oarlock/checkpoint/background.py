"""Saves in the background: one after the other, each from a copy of what it saves, none of them forgotten.

At most two are on their way. A third waits for the first, because there are two places for copies in the host's
memory, which are kept and used again.
"""

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from oarlock.checkpoint.manifest import CheckpointError

_ALIGNMENT = 64
_NUM_ARENAS = 2


class PendingSave:
    """A save that goes on in the background.

    Should it fail, `result` raises that, and if nobody asks for it, so does the next save.
    """

    def __init__(self, step: int, future: "Future[Path]") -> None:
        self._step = step
        self._future = future
        self._told = False

    def done(self) -> bool:
        """Whether it has ended, in either way."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> Path:
        """Wait for the end.

        Args:
            timeout: seconds; None waits for ever.

        Returns:
            The directory of the checkpoint, which is published and durable.

        Raises:
            CheckpointError: as save_checkpoint; nothing was published. TimeoutError: it has not ended yet.
        """
        error = self._future.exception(timeout)
        self._told = True
        if error is not None:
            raise error
        return self._future.result()

    def __repr__(self) -> str:
        state = "running" if not self.done() else "failed" if self._future.exception() else "saved"
        return f"PendingSave(step={self._step}, {state})"

    def _failure(self) -> str | None:
        """What went wrong, if nobody has been told yet."""
        if self._told or not self.done() or (error := self._future.exception()) is None:
            return None
        return str(error) or type(error).__name__

    def _settle(self) -> None:
        """Wait, and take its failure as told."""
        self._future.exception()
        self._told = True


class Arena:
    """Host memory for one copy of what a rank saves; it grows when needed and is used again."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8, device="cpu")
        self.free = threading.Event()
        self.free.set()

    def copy(self, tensors: Sequence[Tensor]) -> Iterable[Tensor]:
        """Contiguous copies with the same bits. They are complete on return."""
        tensors = [tensor.detach().resolve_conj().resolve_neg() for tensor in tensors]
        starts, size = [], 0
        for tensor in tensors:
            starts.append(size)
            size += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
        devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
        if size > len(self._memory):
            self._memory = torch.empty(0, dtype=torch.uint8, device="cpu")
            self._memory = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=bool(devices))
        copies = []
        for tensor, start in zip(tensors, starts, strict=True):
            place = self._memory[start : start + tensor.numel() * tensor.element_size()].view(tensor.dtype)
            copies.append(place.view(tensor.shape).copy_(tensor, non_blocking=True))
        for device in devices:
            torch.cuda.synchronize(device)
        return copies


class Line:
    """The saves of this process that are on their way, first come, first served."""

    def __init__(self) -> None:
        self._arenas = [Arena() for _ in range(_NUM_ARENAS)]
        self._pending: list[PendingSave] = []
        self._executor: ThreadPoolExecutor | None = None

    def failure(self, *, wait: bool) -> str | None:
        """Why an earlier save failed, if nobody has been told; with `wait` after all have ended."""
        for pending in self._pending:
            if wait:
                pending._future.exception()
            if (failure := pending._failure()) is not None:
                return f"the save of step {pending._step} in the background failed: {failure}"
        self._pending = [pending for pending in self._pending if not pending.done()]
        return None

    def settle(self) -> None:
        """Wait for all saves; their failures have been told."""
        for pending in self._pending:
            pending._settle()
        self._pending = []

    def arena(self) -> Arena:
        """Memory for the next copy, after the save that uses it has ended."""
        arena = self._arenas.pop(0)
        self._arenas.append(arena)
        arena.free.wait()
        arena.free.clear()
        return arena

    def submit(self, step: int, arena: Arena, action: Callable[[], Path]) -> PendingSave:
        """Run `action` in the background, after those before it; then its memory is free again."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "oarlock-save")  # at exit, Python waits for what it has to do
            atexit.register(self._complain)

        def run() -> Path:
            try:
                return action()
            finally:
                arena.free.set()

        pending = PendingSave(step, self._executor.submit(run))
        self._pending.append(pending)
        return pending

    def _complain(self) -> None:
        if (failure := self.failure(wait=True)) is not None:
            print(f"oarlock: {failure}", file=sys.stderr)


LINE = Line()
os.register_at_fork(after_in_child=LINE.__init__)  # a forked process has no thread that would go on with the saves


def finish_saves() -> None:
    """Wait for all saves of this process in the background, for instance before torch.distributed is shut down.

    Raises:
        CheckpointError: one has failed, and nobody has been told.
    """
    if (failure := LINE.failure(wait=True)) is not None:
        LINE.settle()
        raise CheckpointError(failure)


_groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
_world: dist.ProcessGroup | None = None


def background_group(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """A gloo group of the same processes, in which the background talks; all of them call it."""
    global _world
    if not dist.is_initialized():
        return None
    if dist.group.WORLD is not _world:
        _groups.clear()
        _world = dist.group.WORLD
    members = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
    if members not in _groups:
        alone = len(members) < dist.get_world_size()  # other processes do not take part
        new = dist.new_group(list(members), backend="gloo", use_local_synchronization=alone)
        assert isinstance(new, dist.ProcessGroup)  # this process is a member
        _groups[members] = new
    return _groups[members]
