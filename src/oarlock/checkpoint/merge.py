"""Whole tensors from the shards of all ranks, a bucket at a time: for exports, and for engines that want full weights.

for name, tensor in iter_full(model.state_dict(), aoa=program, max_bytes=256 << 20):
    engine.load(name, tensor)
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from oarlock.checkpoint.agreement import all_or_none, in_touch
from oarlock.checkpoint.aoa import AOA, Relation, TensorSpec
from oarlock.checkpoint.distribution import Table, exchange, split
from oarlock.checkpoint.reshard_routes import Routes, plan_routes
from oarlock.checkpoint.reshard_sources import describe_sources, gather_cells, holder_sets
from oarlock.checkpoint.reshard_units import Home, Use, uses_of_blocks
from oarlock.checkpoint.shards import Shard, shard_of
from oarlock.checkpoint.stored import StoredTensor
from oarlock.ranks import Ranks


def iter_full(
    state: Mapping[str, Tensor | Shard],
    aoa: AOA | str | Sequence[str] | None = None,
    *,
    max_bytes: int = 512 << 20,
    group: dist.ProcessGroup | None = None,
    to: Collection[int] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a program's export, or those of `state`, whole and one by one; all ranks of the group iterate.

    They are put together in buckets. With what is on its way a bucket takes up at most `max_bytes` (or one tensor);
    the iterator forgets each tensor as it hands it out, and fills the next bucket when all are gone. So with a caller
    that keeps no tensor but the last, no more than `max_bytes` and one tensor is in memory beyond the state. Each
    byte that a rank lacks is received once, see plan_reshard.

    Args:
        state: name -> tensor, DTensor or :class:`Shard` that this rank holds; it must not change meanwhile.
        aoa: what to put together, in the AOA language (docs/aoa.md); None = the tensors as they are. Of tied names
            that no statement writes, the first is given.
        max_bytes: per rank.
        group: the processes that take part; None = all of them, or this one.
        to: the ranks of the group that get the tensors; None = all. The others must iterate too: they send, and their
            iterator ends without giving any. A rank that stops early keeps the others waiting.
        dtype: of tensors of floating dtypes of 16 bits and more, which travel in the smaller of the two; None = theirs.
        device: of the tensors.

    Returns:
        An iterator of (name, tensor). The plan is made now; the tensors are read when the iterator gets to them.

    Raises:
        CheckpointError, ValueError, AOAError: the program does not fit, or elements are on no rank; on every rank.
            CheckpointError while iterating: a rank failed.
    """
    ranks = Ranks(group)
    failure = "merging failed"
    given: list[tuple[dict[str, Shard], dict[str, Table]]] = []

    def look() -> None:
        if max_bytes < 16:
            raise ValueError(f"max_bytes must be >= 16, got {max_bytes}")
        if to is not None and (unknown := sorted(rank for rank in to if not 0 <= rank < ranks.size)):
            raise ValueError(f"to names rank {unknown[0]}, but the group has {ranks.size} ranks")
        shards = {name: shard_of(value) for name, value in state.items()}
        given.append((shards, {"source": describe_sources(shards)}))

    all_or_none(ranks, look, failure)
    shards, described = given.pop()
    with in_touch(failure):
        tables = exchange(ranks, described)
    staging_bytes = max_bytes // 8  # of what is sent, and as much of what is received
    planned: list[tuple[dict[str, StoredTensor], _Buckets, list[Use]]] = []

    def plan() -> None:
        stored = gather_cells([table["source"] for table in tables], "source")
        outputs = _outputs(stored, aoa if isinstance(aoa, AOA) else AOA(aoa or ""), dtype)
        parts = split(outputs, lambda name: _num_bytes(outputs[name]), max_bytes - 2 * staging_bytes)
        buckets = [{name: (outputs[name], Home(None)) for name in part} for part in parts]
        uses = []
        if to is None or ranks.rank in to:
            for phase, bucket in enumerate(buckets):
                for relation, home in bucket.values():
                    uses += uses_of_blocks(relation.blocks, stored, home, relation.dtype, phase)
        planned.append((stored, buckets, uses))

    all_or_none(ranks, plan, failure)
    stored, buckets, uses = planned.pop()
    views = {name: list(shard.views()) for name, shard in shards.items()}
    routes = plan_routes(ranks, uses, holder_sets(stored), views, staging_bytes=staging_bytes, failure=failure)
    return _iterate(ranks, routes, buckets, torch.device(device), to is None or ranks.rank in to)


_Buckets = list[dict[str, tuple[Relation, Home]]]


def _iterate(
    ranks: Ranks, routes: Routes, buckets: _Buckets, device: torch.device, receives: bool
) -> Iterator[tuple[str, Tensor]]:
    for phase, bucket in enumerate(buckets):
        if receives:
            for relation, home in bucket.values():
                home.tensor = torch.empty(relation.shape, dtype=relation.dtype, device=device)
        routes.run(ranks, phase, f"merging {', '.join(list(bucket)[:3])}... failed")
        if receives:
            for name, (_, home) in bucket.items():
                yield name, home.take()


def _outputs(stored: Mapping[str, StoredTensor], aoa: AOA, dtype: torch.dtype | None) -> dict[str, Relation]:
    """What is put together; of tied tensors that no statement writes, one."""
    program = aoa.compile({name: TensorSpec(tensor.shape, tensor.dtype) for name, tensor in stored.items()}, None)
    done = {id(stored[s]) for name in program.tensors if name in program.written for s in program.sources(name)}
    outputs = {}
    for name, relation in program.tensors.items():
        if name not in program.written:
            if id(stored[name]) in done:
                continue
            done.add(id(stored[name]))
        wanted = dtype if relation.dtype.is_floating_point and relation.dtype.itemsize > 1 else None
        outputs[name] = relation.cast(wanted or relation.dtype)
    return outputs


def _num_bytes(relation: Relation) -> int:
    return math.prod(relation.shape) * relation.dtype.itemsize
