"""Executing blocks: the reference that every reader can be checked against, and the way to read computed tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from oarlock.checkpoint.aoa.algebra import Relation
from oarlock.checkpoint.aoa.blocks import Block, Constant
from oarlock.checkpoint.aoa.quantized import Box, Computed

ReadBox = Callable[[str, tuple[int, ...], tuple[int, ...]], Tensor]
"""(source name, offset, size) -> that box of the source tensor; a view or a copy, any strides."""


def fill(blocks: Iterable[Block], destination: Tensor, read: ReadBox) -> None:
    """Write all blocks of a query into `destination`, the queried box."""
    for block in blocks:
        if isinstance(block.source, Constant):
            block.copy(destination, destination)
            continue
        offset, size = block.source_box()
        if isinstance(block.source, Computed):
            hull = block.source.hull(offset, size)
            block.copy(computed(block.source, hull, read, destination.device), destination, origin=hull[0])
        else:
            block.copy(read(block.source, offset, size), destination, origin=offset)


def computed(tensor: Computed, hull: Box, read: ReadBox, device: torch.device | None = None) -> Tensor:
    """The values of a computed tensor in a hull: boxes of its inputs are read, nothing else."""
    boxes = zip(tensor.inputs, tensor.input_boxes(hull), strict=True)
    return tensor.compute(*[materialize(relation, read, *box, device=device) for relation, box in boxes])


def materialize(
    relation: Relation,
    read: ReadBox,
    offset: Sequence[int] | None = None,
    size: Sequence[int] | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """A new tensor with the elements of a relation, or of a box of it."""
    offset = (0,) * len(relation.shape) if offset is None else offset
    size = relation.shape if size is None else size
    result = torch.empty(tuple(size), dtype=relation.dtype, device=device)
    fill(relation.query(offset, size), result, read)
    return result
