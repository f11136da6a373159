"""Names that are unique in the process: `generate("linear")` gives linear_0, linear_1, ...

Names of parameters, and through them the keys of an optimizer's state, come from here. A program that builds its
network a second time in one process wraps both in `guard()`, so that the names are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class UniqueNameGenerator:
    """Counts each key for itself; `prefix` stands before every name."""

    def __init__(self, prefix: str | None = None) -> None:
        self.prefix = prefix or ""
        self.ids: Counter[str] = Counter()

    def __call__(self, key: str) -> str:
        """The next name of a key."""
        number = self.ids[key]
        self.ids[key] += 1
        return f"{self.prefix}{key}_{number}"


generator = UniqueNameGenerator()


def generate(key: str) -> str:
    """`key_0`, `key_1`, ... in the order in which they are asked for."""
    return generator(key)


def switch(
    new_generator: UniqueNameGenerator | None = None, new_para_name_checker: object = None
) -> tuple[UniqueNameGenerator, object]:
    """Count with another generator (a new one by default) from now on; returns the one before, and its checker."""
    global generator
    before, generator = generator, new_generator or UniqueNameGenerator()
    return before, new_para_name_checker


@contextmanager
def guard(new_generator: UniqueNameGenerator | str | bytes | None = None) -> Iterator[None]:
    """Count anew inside, with a generator or a prefix of one's own; go on as before behind it."""
    if isinstance(new_generator, bytes):
        new_generator = new_generator.decode()
    if isinstance(new_generator, str):
        new_generator = UniqueNameGenerator(new_generator)
    before, _ = switch(new_generator)
    try:
        yield
    finally:
        switch(before)
