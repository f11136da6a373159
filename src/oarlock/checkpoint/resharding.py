"""From shards to shards in memory: tensors that some ranks hold in one layout fill those of others in another.

    report = reshard(trainer.state_dict(), rollout.state_dict(), aoa=program)       # once
    plan = plan_reshard(trainer.state_dict(), rollout.state_dict(), aoa=program)    # planned once, then every step:
    plan.run()

What moves is the least that can: for every rank the elements that it needs and does not hold, each of them once.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from oarlock.checkpoint.agreement import all_or_none, in_touch
from oarlock.checkpoint.aoa import AOA
from oarlock.checkpoint.distribution import Table, describe_shards, exchange
from oarlock.checkpoint.dtypes import dtype_of
from oarlock.checkpoint.loading import LoadPlan, Strict
from oarlock.checkpoint.reshard_routes import Routes, plan_routes
from oarlock.checkpoint.reshard_sources import agreed, describe_sources, gather_cells, holder_sets
from oarlock.checkpoint.reshard_units import Use, uses_of_transfer
from oarlock.checkpoint.shards import Shard, find_ties, shard_of
from oarlock.checkpoint.stored import StoredTensor
from oarlock.checkpoint.ties import Tie
from oarlock.checkpoint.transfers import Transfer
from oarlock.ranks import Ranks

STAGING_BYTES = 64 << 20
Tensors = Mapping[str, Tensor | Shard]


@dataclass(frozen=True)
class ReshardReport:
    """What a plan moves each time it runs, in bytes.

    Attributes:
        sent, received: per rank, over the wire.
        copied: by this rank, within its memory.
        loaded, kept: names of destinations that are filled, and that keep their values.
        unexpected: names of sources that no destination needs.
    """

    sent: tuple[int, ...]
    received: tuple[int, ...]
    copied: int
    loaded: tuple[str, ...]
    kept: tuple[str, ...]
    unexpected: tuple[str, ...]

    def __str__(self) -> str:
        busiest = max(range(len(self.sent)), key=self.sent.__getitem__)
        return (
            f"{len(self.loaded)} tensors, {_mib(sum(self.received))} between {len(self.sent)} ranks "
            f"(most from rank {busiest}: {_mib(self.sent[busiest])}), {_mib(self.copied)} copied here"
        )


@dataclass(frozen=True, eq=False)
class ReshardPlan:
    """Who sends what to whom, to be run as often as the sources change; made by plan_reshard.

    It keeps the tensors that it was made for: they are read and written where they lie. It also keeps its staging.
    """

    report: ReshardReport
    _routes: Routes
    _ranks: Ranks

    def run(self) -> ReshardReport:
        """Fill the destinations from the sources as they are now; all ranks call it.

        Raises:
            CheckpointError: a rank failed or is gone; destinations may be filled in part.
        """
        self._routes.run(self._ranks, 0, "resharding failed, destinations may be filled in part")
        return self.report


def reshard(src: Tensors, dst: Tensors, group: dist.ProcessGroup | None = None, **options: Any) -> ReshardReport:
    """Fill `dst` from `src` between the memories of several ranks: plan_reshard(src, dst, group, ...).run()."""
    return plan_reshard(src, dst, group, **options).run()


def plan_reshard(
    src: Tensors,
    dst: Tensors,
    group: dist.ProcessGroup | None = None,
    *,
    aoa: AOA | str | Sequence[str] | None = None,
    slots: bool = False,
    strict: Strict = "all",
    cast: bool = False,
    prefer: Collection[str] = (),
    staging_bytes: int = STAGING_BYTES,
) -> ReshardPlan:
    """Work out how tensors of one layout fill those of another; all ranks of the group call it.

    What a rank holds itself it copies. Every other element that it needs is received once (also where several of its
    tensors need it), from one of the ranks that hold it: one on the same machine if there is one, and such that the
    busiest rank sends as few bytes as possible. It travels in the dtype that it has or, if a cast makes it smaller, in
    the one that it gets. So rank r receives Σ over elements x in N(r) - H(r) of min(itemsize there, here) bytes, with
    N(r) the elements that its destinations need and H(r) those that it holds; nothing less would do.

    Args:
        src: name -> tensor, DTensor or :class:`Shard` that this rank holds; may be empty.
        dst: name -> the same, to be written in place; may be empty. No memory may be in both.
        group: the processes that take part; None = all of them, or this one.
        aoa: how the destinations are made of the sources, in the AOA language (docs/aoa.md); None = by name.
        slots: the names are `slot/parameter`, as optimizer_tensors gives them; see TensorSource.load.
        strict: whether names may lack a partner; see TensorSource.load. The names of all ranks count.
        cast: convert where the dtypes differ, instead of refusing.
        prefer: of destinations that share their memory those that count, where their sources differ.
        staging_bytes: most bytes that a rank holds of what it sends, and as many of what it receives.

    Raises:
        CheckpointError, ValueError, AOAError: names, shapes or dtypes do not fit, elements are on no rank, or sources
            and destinations share memory; on every rank.
    """
    ranks = Ranks(group)
    failure = "resharding failed, nothing was changed"
    given: list[tuple[dict[str, Shard], dict[str, Shard], dict[str, Table]]] = []

    def look() -> None:
        if staging_bytes < 1:
            raise ValueError(f"staging_bytes must be >= 1, got {staging_bytes}")
        sources, destinations = ({name: shard_of(value) for name, value in t.items()} for t in (src, dst))
        _check_apart(sources, destinations)
        wanted = describe_shards(destinations, find_ties(destinations))
        own = {"source": describe_sources(sources, values=slots), "destination": wanted}
        given.append((sources, destinations, own))

    all_or_none(ranks, look, failure)
    sources, destinations, described = given.pop()
    with in_touch(failure):
        tables = exchange(ranks, described)
    planned: list[tuple[dict[str, StoredTensor], LoadPlan, list[Use]]] = []

    def plan() -> None:
        stored = gather_cells([table["source"] for table in tables], "source")
        own = LoadPlan(stored, _with_foreign(destinations, tables), strict, cast, prefer)
        program = aoa if aoa is None or isinstance(aoa, AOA) else AOA(aoa)
        if program is None:
            own.by_name()
        elif slots:
            own.by_slot(program)
        else:
            own.by_program(program)
        own.finish()
        for tie in own.doubts:
            _check_tie(tie)
        for overlap in own.overlaps:
            raise ValueError(
                f"the destinations {overlap.first!r} and {overlap.second!r} share some of their memory; leave one out"
            )
        uses = [use for transfer in own.transfers for use in uses_of_transfer(transfer)]
        planned.append((stored, own, uses))

    all_or_none(ranks, plan, failure)
    stored, own, uses = planned.pop()
    views = {name: list(shard.views()) for name, shard in sources.items()}
    routes = plan_routes(ranks, uses, holder_sets(stored), views, staging_bytes=staging_bytes, failure=failure)
    local = [use for use, source, _ in routes.local.get(0, ()) if source is not None]
    report = ReshardReport(
        sent=tuple(map(sum, routes.traffic)),
        received=tuple(map(sum, zip(*routes.traffic, strict=True))),
        copied=sum(use.block.volume * use.dtype.itemsize for use in local),
        loaded=tuple(own.report.loaded),
        kept=tuple(own.report.kept),
        unexpected=tuple(own.report.unexpected),
    )
    return ReshardPlan(report, routes, ranks)


def _with_foreign(destinations: Mapping[str, Shard], tables: Sequence[Mapping[str, Table]]) -> dict[str, Shard]:
    """The destinations of all ranks, those of which this one has nothing without pieces: the names must fit for all."""
    wanted = [table["destination"] for table in tables]
    absent: dict[str, Tensor] = {}
    found = {}
    for name in dict.fromkeys(name for table in wanted for name in table):
        told = agreed("destination", name, wanted)
        if name in destinations and destinations[name].pieces:
            found[name] = destinations[name]
            continue
        entry = next(iter(told.values()))
        first = {one.get("same_as", name) for one in told.values() if one["boxes"]}
        memory = torch.empty(1, dtype=dtype_of(entry["dtype"]), device="cpu")
        absent[name] = absent.get(first.pop(), memory) if len(first) == 1 else memory
        found[name] = Shard(absent[name], tuple(entry["shape"]), ())
    return found


def _check_apart(sources: Mapping[str, Shard], destinations: Mapping[str, Shard]) -> None:
    """Raise ValueError if writing a destination would change a source."""
    spans = []
    for kind, shards in enumerate((sources, destinations)):
        for name, shard in shards.items():
            tensor = shard.tensor
            if tensor.numel() and shard.pieces:
                start = tensor.data_ptr()
                reach = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
                spans.append((str(tensor.device), start, start + (reach + 1) * tensor.itemsize, kind, name))
    last: dict[int, tuple[str, int, str]] = {}  # per kind, the span that reaches farthest
    for device, start, stop, kind, name in sorted(spans):
        other = last.get(1 - kind)
        if other is not None and other[0] == device and other[1] > start:
            names = (name, other[2]) if kind == 0 else (other[2], name)
            raise ValueError(
                f"the source {names[0]!r} and the destination {names[1]!r} share memory; pass a clone of the source"
            )
        if kind not in last or last[kind][0] != device or last[kind][1] < stop:
            last[kind] = device, stop, name


def _check_tie(tie: Tie) -> None:
    """Raise ValueError unless two destinations with one memory consist of the same elements."""
    for box, view in tie.fillings[0].shard.views():
        moves = [[_elements(use) for step in f.fill(box, view) for use in _uses(step)] for f in tie.fillings]
        if moves[0] != moves[1]:
            raise ValueError(
                f"{tie.first} and {tie.second} share their memory but have different sources; untie them, or choose "
                f"one: prefer=({tie.first!r},)"
            )


def _uses(step: Transfer) -> list[Use]:
    return list(uses_of_transfer(step))


def _elements(use: Use) -> tuple[Any, ...]:
    block = use.block
    return use.cell, block.atoms, block.source_base, block.dest_base, block.ops


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
