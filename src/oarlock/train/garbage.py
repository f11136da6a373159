"""When Python's garbage collector runs during a training."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_at_chosen_steps(active: bool) -> Iterator[None]:
    """Stop Python's own garbage collection for a while, so that all ranks pause together where the loop collects."""
    if not active:
        yield
        return
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()  # what is here now lives as long as the run: no later collection looks at it
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
