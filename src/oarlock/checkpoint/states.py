"""Dtypes of optimizer states under a program, whose casts mostly concern the parameters only."""

from collections.abc import Collection, Iterable, Iterator, Mapping

import torch

from oarlock.checkpoint.aoa import Block, Cast, Computed, Constant
from oarlock.checkpoint.derived import Derived
from oarlock.checkpoint.stored import StoredTensor

Stored = Mapping[str, StoredTensor | Derived]


def misfit(blocks: Collection[Block], stored: Stored, wanted: torch.dtype, cast: bool) -> str | None:
    """Why the blocks of a state cannot fill a destination of a dtype, or None."""
    found = dict.fromkeys(dtype for block in blocks if (dtype := _produced(block, stored)) not in (None, wanted))
    if cast or not found:
        return None
    names = ", ".join(map(str, found))
    return f"the checkpoint has {names}, the destination {wanted}; pass cast=True to convert"


def converted(blocks: Iterable[Block], stored: Stored, wanted: torch.dtype) -> Iterator[Block]:
    """The blocks, each with a cast at its end if it needs one."""
    for block in blocks:
        dtype = _produced(block, stored)
        yield block if dtype in (None, wanted) else block.with_ops((*block.ops, Cast(dtype, wanted, "all")))


def _produced(block: Block, stored: Stored) -> torch.dtype | None:
    """The dtype that a block's elements have in the end; None for padding, which has any."""
    for op in reversed(block.ops):
        if isinstance(op, Cast):
            return op.dtype
    if isinstance(block.source, Constant):
        return None
    return block.source.dtype if isinstance(block.source, Computed) else stored[block.source].dtype
