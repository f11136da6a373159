"""The backward graph of a block, drawn."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from oarlock import debug


@contextlib.contextmanager
def capture_backward_subgraph_guard(dump_dir_path: str, need_dump_grad_tensors: bool = False) -> Iterator[None]:
    """Draw what the block computes, forward and backward, with the stacks of its calls.

    The folder gets `graph.html`, `graph.dot` and the records (`trace.rankR.jsonl`, `stacks.rankR.jsonl`). Backward
    nodes are there if backward runs within the block.

    Args:
        need_dump_grad_tensors: also note what is in each tensor and gradient, as digests.
    """
    with debug.trace(dir=dump_dir_path, stacks=True, digests="md5" if need_dump_grad_tensors else None):
        yield
    graph = debug.graph_of(debug.read_records(trace_file(dump_dir_path)), stacks=dump_dir_path)
    for name in ("graph.html", "graph.dot"):
        graph.write(Path(dump_dir_path) / name, title="Backward graph")


def trace_file(folder: str) -> Path:
    """This process's records."""
    from oarlock.ranks import Ranks

    return debug.trace_files(folder)[Ranks().rank]
