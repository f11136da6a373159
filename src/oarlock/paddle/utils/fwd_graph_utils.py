"""The forward graph of a block, drawn."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from oarlock import debug


@contextlib.contextmanager
def capture_forward_subgraph_guard(file_path: str) -> Iterator[None]:
    """Draw the calls of the block into a file: `.html` is a page of its own, anything else Graphviz' language."""
    with debug.trace(nodes=False) as trace:
        yield
    Path(file_path).parent.mkdir(parents=True, exist_ok=True)
    trace.graph(only="forward").write(file_path, title="Forward graph")
