"""Neighbours of the nodes of a graph, all or a random part of them. The graph is in CSC form: `row` and `colptr`."""

import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.incubate.segments import GEOMETRIC, INCUBATE


def _sampled(
    row: Tensor,
    colptr: Tensor,
    nodes: Tensor,
    size: int,
    eids: Tensor | None,
    return_eids: bool,
    weight: Tensor | None = None,
) -> tuple[Tensor, ...]:
    if return_eids and eids is None:
        raise ValueError("return_eids=True needs eids, the number of each edge")
    edges = []
    for node in nodes.flatten().tolist():
        start, stop = int(colptr[node]), int(colptr[node + 1])
        own = torch.arange(start, stop, device=row.device)
        if 0 <= size < len(own):
            chances = torch.ones(len(own)) if weight is None else weight[start:stop].float()
            own = own[torch.multinomial(chances, size).sort().values.to(own.device)]
        edges.append(own)
    chosen = torch.cat(edges) if edges else torch.empty(0, dtype=torch.int64, device=row.device)
    counts = torch.tensor([len(own) for own in edges], dtype=torch.int32, device=row.device)
    found = (row.flatten()[chosen], counts)
    return (*found, eids.flatten()[chosen]) if return_eids and eids is not None else found


@api(at=GEOMETRIC, out=False)
def sample_neighbors(
    row: Tensor,
    colptr: Tensor,
    input_nodes: Tensor,
    sample_size: int = -1,
    eids: Tensor | None = None,
    return_eids: bool = False,
    perm_buffer: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """At most `sample_size` neighbours of each node, without repetition; all of them for -1.

    Args:
        row: the neighbours of all nodes, one node after the other.
        colptr: [nodes + 1], where the neighbours of each node start.
        input_nodes: the nodes asked for.

    Returns:
        (neighbours, how many each node has, int32), and the chosen `eids` with `return_eids`.
    """
    return _sampled(row, colptr, input_nodes, sample_size, eids, return_eids)


@api(at=INCUBATE, out=False)
def graph_sample_neighbors(
    row: Tensor,
    colptr: Tensor,
    input_nodes: Tensor,
    eids: Tensor | None = None,
    perm_buffer: Tensor | None = None,
    sample_size: int = -1,
    return_eids: bool = False,
    flag_perm_buffer: bool = False,
) -> tuple[Tensor, ...]:
    """`sample_neighbors` in the older order of arguments; the buffer of a GPU kernel is not needed."""
    return _sampled(row, colptr, input_nodes, sample_size, eids, return_eids)


@api(at=GEOMETRIC, out=False)
def weighted_sample_neighbors(
    row: Tensor,
    colptr: Tensor,
    edge_weight: Tensor,
    input_nodes: Tensor,
    sample_size: int = -1,
    eids: Tensor | None = None,
    return_eids: bool = False,
) -> tuple[Tensor, ...]:
    """`sample_neighbors` in proportion to the weights of the edges."""
    return _sampled(row, colptr, input_nodes, sample_size, eids, return_eids, edge_weight.flatten())
