"""A one-way link with a rate: a thread that copies in order, no faster than a token bucket allows."""

from __future__ import annotations

import contextlib
import copy
import queue
import threading
import time
from collections import deque
from collections.abc import Callable

from oarlock.memory.pool import without_frames

CHUNK = 1 << 20


class Transfer:
    """One copy in a link's queue.

    Attributes:
        began, ended: seconds of `time.perf_counter`, once it has.
        is_cancelled: its bytes will not be there.
    """

    def __init__(self, num_bytes: int, move: Callable[[int, int], None]) -> None:
        self.num_bytes = num_bytes
        self.began = self.ended = 0.0
        self.is_cancelled = False
        # One of `run` and `cancel` takes it. No lock: `cancel` may be called by a destructor at any point of either.
        self._moves = deque([move])
        self._has_turn = False
        # Held until the copy is cancelled. (A SimpleQueue may wait for ever where its timeout is under a microsecond.)
        self._running = threading.Lock()
        self._running.acquire()
        self._done = threading.Event()
        self._error: BaseException | None = None

    def run(self, rate: float | None) -> None:
        """Copies piece by piece, each not before the link has had the time for it; for the link's thread."""
        self._has_turn = True
        move = self._take()
        if move is None:
            self._done.set()
            return
        try:
            self.began = time.perf_counter()
            for start in range(0, self.num_bytes, CHUNK):
                stop = min(start + CHUNK, self.num_bytes)
                move(start, stop)
                if self._is_ended_within(0.0 if rate is None else self.began + stop / rate - time.perf_counter()):
                    break
        except BaseException as error:
            self._error = without_frames(error)
        self.ended = time.perf_counter()
        del move  # before anybody is told: it holds the memory
        self._done.set()

    def cancel(self, *, wait: bool = True) -> None:
        """Nobody needs the copy any more: it does not begin, or ends behind the piece that it is at.

        Args:
            wait: until the copy holds the memory no more. False for destructors, which may run in any thread.
        """
        self.is_cancelled = True
        if self._take() is not None:
            return
        with contextlib.suppress(RuntimeError):  # another has cancelled it too
            self._running.release()
        if wait and self._has_turn:  # else another has cancelled it in the queue
            self._done.wait()

    def is_done(self) -> bool:
        """Whether the bytes are there, or the copy failed."""
        return self._done.is_set() and not self.is_cancelled

    def wait(self) -> None:
        """Until the bytes are there.

        Raises:
            OSError, OutOfMemoryError: the copy failed.
        """
        assert not self.is_cancelled, "nobody waits for what was cancelled"
        self._done.wait()
        if self._error is not None:
            raise copy.copy(self._error) from self._error.__cause__

    def _take(self) -> Callable[[int, int], None] | None:
        try:
            return self._moves.pop()
        except IndexError:
            return None

    def _is_ended_within(self, seconds: float) -> bool:
        return self._running.acquire(timeout=min(max(0.0, seconds), threading.TIMEOUT_MAX))


class Link:
    """Copies in the order of `send`.

    Args:
        name: of its thread.
        rate: bytes per second; None for as fast as it goes.
    """

    def __init__(self, name: str, rate: float | None = None) -> None:
        if rate is not None and rate <= 0:
            raise ValueError(f"rate = {rate}: a link needs a positive number of bytes per second")
        self.rate = rate
        self.sent_bytes = 0
        self._is_closed = False
        self._queue: queue.SimpleQueue[Transfer | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"oarlock {name}", daemon=True)
        self._thread.start()

    def send(self, num_bytes: int, move: Callable[[int, int], None]) -> Transfer:
        """Queues a copy; `move(start, stop)` moves these bytes and is called in the link's thread.

        Raises:
            ValueError: the link is closed.
        """
        if self._is_closed:
            raise ValueError("the second tier is closed: nothing can be sent out or brought back any more")
        transfer = Transfer(num_bytes, move)
        self.sent_bytes += num_bytes
        self._queue.put(transfer)
        return transfer

    def close(self) -> None:
        """Finishes what is queued, then ends the thread."""
        self._is_closed = True
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (transfer := self._queue.get()) is not None:
            transfer.run(self.rate)
            del transfer
