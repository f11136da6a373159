"""How much anonymous memory a part of a benchmark takes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Largest anonymous memory in the block beyond that at its start, bytes; looked at every 2 ms."""
    peak, done, start = [0], threading.Event(), anonymous_bytes()

    def watch() -> None:
        while not done.wait(0.002):
            peak[0] = max(peak[0], anonymous_bytes() - start)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def anonymous_bytes() -> int:
    """Anonymous memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no RssAnon in /proc/self/status")
