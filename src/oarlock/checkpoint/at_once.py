"""Several files written at once: a lock on each file's pages keeps one file from going faster than one thread."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")
Progress = Callable[[int], None]


class Stopped(Exception):
    """Raised in a job when another one has failed."""


def run_at_once(jobs: Sequence[Callable[[Progress], T]], num_threads: int, progress: Progress) -> list[T]:
    """What the jobs return.

    Args:
        jobs: each is called with a function that takes the bytes it has done since its last call.
        num_threads: how many run at a time.
        progress: the same for all of them together; called by one thread at a time.

    Raises:
        Whatever a job raises first; the others end at their next sign of progress.
    """
    lock, stop = threading.Lock(), threading.Event()

    def told(num_bytes: int) -> None:
        if stop.is_set():
            raise Stopped
        with lock:
            progress(num_bytes)

    with ThreadPoolExecutor(num_threads) as pool:
        running = [pool.submit(job, told) for job in jobs]
        try:
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            for job in done:
                job.result()
            return [job.result() for job in running]
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
