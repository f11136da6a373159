"""A one-way link with a rate: a thread that copies in order, no faster than a token bucket allows."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

CHUNK = 1 << 20


class Transfer:
    """One copy in a link's queue.

    Attributes:
        began, ended: seconds of `time.perf_counter`, once it has.
    """

    def __init__(self, num_bytes: int, copy: Callable[[int, int], None]) -> None:
        self.num_bytes = num_bytes
        self.began = self.ended = 0.0
        self._copy: Callable[[int, int], None] | None = copy
        self._done = threading.Event()
        self._error: BaseException | None = None

    def run(self, rate: float | None) -> None:
        """Copies piece by piece, each not before the link has had the time for it; for the link's thread."""
        copy, self._copy = self._copy, None
        assert copy is not None
        try:
            self.began = time.perf_counter()
            for start in range(0, self.num_bytes, CHUNK):
                stop = min(start + CHUNK, self.num_bytes)
                copy(start, stop)
                if rate is not None:
                    time.sleep(max(0.0, self.began + stop / rate - time.perf_counter()))
        except BaseException as error:
            self._error = error
        self.ended = time.perf_counter()
        del copy  # before anybody is told: it holds the memory
        self._done.set()

    def is_done(self) -> bool:
        """Whether the bytes are there."""
        return self._done.is_set()

    def wait(self) -> None:
        """Until the bytes are there.

        Raises:
            OSError: the copy failed.
        """
        self._done.wait()
        if self._error is not None:
            raise self._error


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
        self._queue: queue.SimpleQueue[Transfer | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"oarlock {name}", daemon=True)
        self._thread.start()

    def send(self, num_bytes: int, copy: Callable[[int, int], None]) -> Transfer:
        """Queues a copy; `copy(start, stop)` moves these bytes and is called in the link's thread."""
        transfer = Transfer(num_bytes, copy)
        self.sent_bytes += num_bytes
        self._queue.put(transfer)
        return transfer

    def close(self) -> None:
        """Finishes what is queued, then ends the thread."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (transfer := self._queue.get()) is not None:
            transfer.run(self.rate)
            del transfer
