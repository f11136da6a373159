"""Reductions over the segments and edges of a graph, as `paddle.incubate` and `paddle.geometric` name them."""

from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import as_number

INCUBATE, GEOMETRIC = "paddle.incubate", "paddle.geometric"
KINDS = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin"}


def _reduced(data: Tensor, index: Tensor, size: int, kind: str) -> Tensor:
    """Rows of `data` gathered into `size` rows; a row without any is 0."""
    if kind not in KINDS:
        raise ValueError(f"the reduction must be one of {', '.join(KINDS)}, not {kind!r}")
    rows = index.long().reshape(-1, *[1] * (data.ndim - 1)).expand_as(data)
    start = data.new_zeros(size, *data.shape[1:])
    return start.scatter_reduce(0, rows, data, KINDS[kind], include_self=False)


def _declare(kind: str) -> None:
    def call(data: Tensor, segment_ids: Tensor) -> Tensor:
        size = int(segment_ids[-1]) + 1 if segment_ids.numel() else 0
        return _reduced(data, segment_ids, size, kind)

    call.__name__ = f"segment_{kind}"
    call.__doc__ = f"The {kind} of the rows of each segment; `segment_ids` ascend. A segment without rows gives 0."
    api(f"{GEOMETRIC}.segment_{kind}", at=INCUBATE)(call)


for _kind in KINDS:
    _declare(_kind)


def _size(x: Tensor, out_size: Any) -> int:
    size = 0 if out_size is None else int(as_number(out_size))
    return size if size > 0 else x.shape[0]


@api(at=INCUBATE)
def graph_send_recv(
    x: Tensor, src_index: Tensor, dst_index: Tensor, pool_type: str = "sum", out_size: Any = None
) -> Tensor:
    """The rows `src_index` of `x`, reduced at `dst_index`; as many rows as `x` unless `out_size` is positive."""
    return _reduced(x[src_index.long()], dst_index, _size(x, out_size), pool_type)


@api(at=GEOMETRIC)
def send_u_recv(
    x: Tensor, src_index: Tensor, dst_index: Tensor, reduce_op: str = "sum", out_size: Any = None
) -> Tensor:
    """The rows `src_index` of `x`, reduced at `dst_index`; as many rows as `x` unless `out_size` is positive."""
    return _reduced(x[src_index.long()], dst_index, _size(x, out_size), reduce_op)


def _message(a: Tensor, b: Tensor, kind: str) -> Tensor:
    """The message of each edge; the features of both sides broadcast, and a number is a feature of size 1."""
    a, b = (side.unsqueeze(1) if side.ndim == 1 else side for side in (a, b))
    most = max(a.ndim, b.ndim)
    a, b = (side.reshape(len(side), *[1] * (most - side.ndim), *side.shape[1:]) for side in (a, b))
    functions = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}
    if kind not in functions:
        raise ValueError(f"message_op must be one of {', '.join(functions)}, not {kind!r}")
    return functions[kind](a, b)


@api(at=GEOMETRIC)
def send_ue_recv(
    x: Tensor,
    y: Tensor,
    src_index: Tensor,
    dst_index: Tensor,
    message_op: str = "add",
    reduce_op: str = "sum",
    out_size: Any = None,
) -> Tensor:
    """The rows `src_index` of `x` combined with those of the edges `y`, reduced at `dst_index`."""
    return _reduced(_message(x[src_index.long()], y, message_op), dst_index, _size(x, out_size), reduce_op)


@api(at=GEOMETRIC)
def send_uv(x: Tensor, y: Tensor, src_index: Tensor, dst_index: Tensor, message_op: str = "add") -> Tensor:
    """The rows `src_index` of `x` combined with the rows `dst_index` of `y`, one for each edge."""
    return _message(x[src_index.long()], y[dst_index.long()], message_op)


def _numbered(x: Tensor, neighbors: list[Tensor], counts: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    numbers = {node: i for i, node in enumerate(x.tolist())}
    sources = [numbers.setdefault(node, len(numbers)) for nodes in neighbors for node in nodes.tolist()]
    rows = torch.arange(len(x), dtype=x.dtype, device=x.device)
    centres = torch.cat([rows.repeat_interleave(count.long()) for count in counts])
    source, nodes = (torch.tensor(part, dtype=x.dtype, device=x.device) for part in (sources, list(numbers)))
    return source, centres, nodes


@api(f"{INCUBATE}.graph_reindex", at=GEOMETRIC, out=False)
def reindex_graph(
    x: Tensor,
    neighbors: Tensor,
    count: Tensor,
    value_buffer: Tensor | None = None,
    index_buffer: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Number the nodes of a sampled graph: those of `x` first, then neighbours in the order of their appearance.

    Args:
        x: the distinct centre nodes.
        neighbors: the neighbours of all of them, one after the other.
        count: how many neighbours each has; for several kinds of edges, those of each kind one after the other.

    Returns:
        (numbers of the neighbours, numbers of their centres, the nodes in the order of their numbers).
    """
    if len(count) % max(len(x), 1):
        raise ValueError(f"count holds {len(count)} numbers, which is no multiple of the {len(x)} nodes of x")
    counts = list(count.split(len(x))) if len(x) else [count]
    return _numbered(x, list(neighbors.split([int(each.sum()) for each in counts])), counts)


@api(at=GEOMETRIC, out=False)
def reindex_heter_graph(
    x: Tensor,
    neighbors: list[Tensor],
    count: list[Tensor],
    value_buffer: Tensor | None = None,
    index_buffer: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`reindex_graph` of several kinds of edges at once: the lists hold what belongs to each kind."""
    return _numbered(x, list(neighbors), list(count))


@api(at=INCUBATE)
def identity_loss(x: Tensor, reduction: Any = "none") -> Tensor:
    """`x` reduced: "sum" or 0, "mean" or 1, "none" or 2."""
    kind = {0: "sum", 1: "mean", 2: "none"}.get(reduction, reduction)
    if kind not in ("sum", "mean", "none"):
        raise ValueError(f"reduction must be 'sum', 'mean' or 'none', not {reduction!r}")
    return x.sum() if kind == "sum" else x.mean() if kind == "mean" else x
