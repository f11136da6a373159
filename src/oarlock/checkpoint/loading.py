"""Loading stored tensors into tensors that exist: plan and validate everything, verify what is read, then copy.

Each rank reads exactly the boxes that its own tensors need, straight from the files; nothing is sent between ranks,
unless they exchange what they read (see exchange.py).
"""

import socket
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from oarlock.checkpoint.agreement import all_or_none, in_touch
from oarlock.checkpoint.aoa import AOA, Block, Program, TensorSpec
from oarlock.checkpoint.aoa.values import State
from oarlock.checkpoint.boxes import Box
from oarlock.checkpoint.derived import Derived
from oarlock.checkpoint.destinations import unfit, unusable
from oarlock.checkpoint.exchange import Exchange, Shared, share
from oarlock.checkpoint.manifest import CheckpointError
from oarlock.checkpoint.mapped_file import ascending
from oarlock.checkpoint.near_miss import near_names
from oarlock.checkpoint.overlaps import Overlap, find_overlaps
from oarlock.checkpoint.shards import Shard, find_ties, shard_of
from oarlock.checkpoint.states import converted, misfit
from oarlock.checkpoint.stored import StoredTensor
from oarlock.checkpoint.ties import Filling, Tie, resolve
from oarlock.checkpoint.transfers import Read, Transfer, moves, transfers
from oarlock.ranks import Ranks

T = TypeVar("T")
Strict = Literal["all", "destination", "none"]
Verify = Literal["read", "none"]


@dataclass
class LoadReport:
    """What a load did: names of destinations that were filled, that had no source, and of sources without one."""

    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Destinations that keep their values, because the program says so or nothing else fills them."""
    bytes_needed: int = 0
    """Bytes of the files' elements that this rank's tensors consist of."""
    bytes_read: int = 0
    """Bytes of these that this rank read: all, or with an exchange its share of what all ranks need."""
    bytes_received: int = 0
    """Bytes that other ranks read and sent to this one."""
    files: list[str] = field(default_factory=list)
    """Names of the files that this rank read."""
    foreign_files: list[str] | None = None
    """Of these the ones that another rank wrote; None where that is not known (see `copies` of save_checkpoint)."""

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} tensors, {self.bytes_needed / 2**20:.1f} MiB from {len(self.files)} files"]
        if self.foreign_files is not None:
            parts[0] += f", {len(self.foreign_files)} of other ranks"
        for what in ("missing", "unexpected", "kept"):
            if names := getattr(self, what):
                parts.append(f"{len(names)} {what}: {_some(names)}")
        return "; ".join(parts)


def load_tensors(
    what: str,
    stored: Mapping[str, StoredTensor | Derived],
    destinations: Mapping[str, Tensor | Shard],
    *,
    aoa: AOA | str | Sequence[str] | None = None,
    slots: bool = False,
    strict: Strict = "all",
    cast: bool = False,
    verify: Verify = "read",
    prefer: Collection[str] = (),
    exchange: Exchange = False,
    ranks: Ranks,
) -> LoadReport:
    """Fill `destinations` from the stored tensors; see TensorSource.load."""
    failure = f"loading {what} failed, nothing was changed"
    planned: list[LoadPlan] = []
    needed: dict[str, np.ndarray] = {}

    def plan() -> str:
        own = LoadPlan(stored, {name: shard_of(v) for name, v in destinations.items()}, strict, cast, prefer)
        program = aoa if aoa is None or isinstance(aoa, AOA) else AOA(aoa)
        if program is None:
            own.by_name()
        elif slots:
            own.by_slot(program)
        else:
            own.by_program(program)
        own.finish()
        own.check()
        if verify == "none":
            own.check_ties()
        else:
            needed.update(_blocks(own.reads))
        planned.append(own)
        return socket.gethostname()

    def fill() -> None:
        with torch.no_grad():
            for transfer in own.transfers:
                transfer.run()

    machines = all_or_none(ranks, plan, failure)
    own = planned.pop()
    shared = None
    if exchange and ranks.size > 1:
        shared = share(stored, own.transfers, ranks, exchange, machines, failure)
    if shared is not None:
        own.leave_to(shared)
        needed = _blocks(own.reads)
    if verify == "read":
        _verify(own, needed, ranks, failure)
    lost = f"loading {what} broke off, what was to be filled is lost"
    if shared is not None:
        shared.run(lost)
    all_or_none(ranks, fill, lost)
    return own.report


class LoadPlan:
    """The transfers of one rank, and everything that is wrong with them."""

    def __init__(
        self,
        stored: Mapping[str, StoredTensor | Derived],
        destinations: Mapping[str, Shard],
        strict: Strict,
        cast: bool,
        prefer: Collection[str] = (),
    ) -> None:
        self._stored = stored
        self._destinations = destinations
        self._strict = strict
        self._cast = cast
        self._prefer = prefer
        self._ties = find_ties(destinations)
        self._problems: list[str] = []
        self._fillings: dict[str, Filling] = {}
        self.doubts: list[Tie] = []
        self.overlaps: list[Overlap] = []
        self.transfers: list[Transfer] = []
        self.reads: list[Read] = []
        self.report = LoadReport()

    def by_name(self) -> None:
        """Every destination is the stored tensor of its name."""
        for name, shard in self._destinations.items():
            if name not in self._stored:
                self.report.missing.append(name)
                continue
            source = self._stored[name]
            if problem := unfit(source, shard, self._cast) or unusable(shard.tensor):
                self._problems.append(f"{name}: {problem}")
                continue
            self._fill(name, shard, partial(transfers, source), id(source))
        self.report.unexpected = [name for name in self._stored if name not in self._destinations]

    def by_program(
        self, aoa: AOA, prefix: str = "", state: State = "param", absent: Literal["error", "skip"] = "error"
    ) -> Program:
        """Every destination of a prefix is what the program says of the rest of its name."""
        stored, destinations = _below(prefix, self._stored), _below(prefix, self._destinations)
        program = self._compile(aoa, prefix, stored, destinations, state, absent)
        self.report.kept += [prefix + name for name in destinations if program.kept(name)]
        self.report.unexpected += [prefix + name for name in stored if name in program.unread - program.dropped]
        for name, shard in destinations.items():
            if program.kept(name) or name not in program.tensors:
                continue
            problem = unusable(shard.tensor)
            if state != "param" and problem is None:
                whole = Box.whole(shard.shape)
                problem = misfit(program.query(name, *whole, state), stored, shard.dtype, self._cast)
            if problem:
                self._problems.append(f"{prefix}{name}: {problem}")
                continue

            def fill(box: Box, target: Tensor, name: str = name) -> Iterable[Transfer]:
                blocks: Iterable[Block] = program.query(name, box.offset, box.size, state)
                return moves(blocks if state == "param" else converted(blocks, stored, target.dtype), stored, target)

            self._fill(prefix + name, shard, fill, program.tensors[name].blocks)
        return program

    def _compile(
        self,
        aoa: AOA,
        prefix: str,
        stored: Mapping[str, StoredTensor | Derived],
        destinations: Mapping[str, Shard],
        state: State,
        absent: Literal["error", "skip"],
    ) -> Program:
        """The program; destinations without a source are left out if they share the memory of one that has one."""
        sources = {name: TensorSpec(tensor.shape, tensor.dtype) for name, tensor in stored.items()}
        wanted = {name: TensorSpec(shard.shape, shard.dtype) for name, shard in destinations.items()}
        compiled = partial(
            aoa.compile,
            sources,
            cast=self._cast or state != "param",
            absent=absent,
            unwanted="error" if self._strict == "all" else "drop",
        )
        if any(prefix + name in self._ties for name in destinations):
            program = compiled(wanted, missing="keep")
            filled = {self._ties.get(prefix + name, prefix + name) for name in program.tensors}
            tied = [n for n in wanted if program.kept(n) and self._ties.get(prefix + n, prefix + n) in filled]
            self.report.loaded += [prefix + name for name in tied]
            wanted = {name: spec for name, spec in wanted.items() if name not in tied}
        return compiled(wanted, missing="keep" if self._strict == "none" else "error")

    def _fill(
        self, name: str, shard: Shard, fill: Callable[[Box, Tensor], Iterable[Transfer]], identity: Hashable
    ) -> None:
        self.report.loaded.append(name)
        self._fillings[name] = Filling(shard, fill, identity)

    def by_slot(self, aoa: AOA) -> None:
        """Names are `slot/parameter`: every slot follows the geometry of the parameters; scalars are taken over, and
        so are names without a slot (a learning rate). A slot need not have all the parameters that `aoa` speaks of."""
        names = list(dict.fromkeys((*self._stored, *self._destinations)))
        slots = dict.fromkeys(name.partition("/")[0] + "/" for name in names if "/" in name)
        scalar = [slot for slot in slots if self._is_scalar(slot)]
        programs = [
            self.by_program(aoa, slot, "master" if slot == "master/" else "optim", absent="skip")
            for slot in slots
            if slot not in scalar
        ]
        taken = {name for name in names if "/" not in name and name in self._destinations}
        for name in taken:
            self._take_scalar(name, self._destinations[name], (name,))
        for slot in scalar:
            for name, shard in _below(slot, self._destinations).items():
                program = next((p for p in programs if name in p.tensors or p.kept(name)), None)
                if program is not None and program.kept(name):
                    self.report.kept.append(slot + name)
                    continue
                sources = (name,) if program is None else program.sources(name)
                taken.update(slot + source for source in sources)
                self._take_scalar(slot + name, shard, [slot + source for source in sources])
        dropped = {name for program in programs for name in program.dropped}
        for slot in ("", *scalar):
            own = [name for name in self._stored if (name.startswith(slot) if slot else "/" not in name)]
            self.report.unexpected += [n for n in own if n not in taken and n.removeprefix(slot) not in dropped]

    def _is_scalar(self, slot: str) -> bool:
        shapes = [
            value.shape for values in (self._stored, self._destinations) for value in _below(slot, values).values()
        ]
        return not any(shapes)

    def _take_scalar(self, name: str, shard: Shard, sources: Sequence[str]) -> None:
        """The value that all sources share, such as the step of all parameters that are fused into one."""
        present = {source: self._stored[source] for source in sources if source in self._stored}
        if not present:
            self.report.missing.append(name)
            return
        first = next(iter(present.values()))
        if problem := unfit(first, shard, self._cast) or unusable(shard.tensor):
            self._problems.append(f"{name}: {problem}")
            return
        values = {source: _read(tensor) for source, tensor in present.items()} if len(present) > 1 else {}
        if any(not torch.equal(value, next(iter(values.values()))) for value in values.values()):
            told = ", ".join(f"{source.partition('/')[2]}: {value.item()}" for source, value in values.items())
            self._problems.append(f"{name} is made of several, which differ ({told})")
            return
        self._fill(name, shard, partial(transfers, first), id(first))

    def finish(self) -> None:
        """Raise CheckpointError if names, shapes or dtypes are wrong; count what will be read."""
        report = self.report
        filled = {self._ties.get(name, name) for name in report.loaded}
        tied = [name for name in report.missing if self._ties.get(name, name) in filled]
        report.loaded += tied
        report.missing = [name for name in report.missing if name not in tied]
        if self._strict != "none" and report.missing:
            known = report.unexpected or list(self._stored)
            self._problems.append(_absent("have no source", report.missing, known))
        if self._strict == "all" and report.unexpected:
            known = list(self._destinations)
            self._problems.append(_absent("of the checkpoint have no destination", report.unexpected, known))
        if self._problems:
            more = f"; and {len(self._problems) - 8} more" if len(self._problems) > 8 else ""
            raise CheckpointError("; ".join(self._problems[:8]) + more)
        self.transfers, self.doubts = resolve(self._fillings, self._prefer)
        self.overlaps = find_overlaps(self._fillings, self._prefer)
        report.bytes_needed = report.bytes_read = sum(transfer.num_bytes for transfer in self.transfers)

    def check(self) -> None:
        """Raise CheckpointError unless the files hold what will be read, as far as they say."""
        self._read_for(self.transfers)
        for read in self.reads:
            read.check()

    def leave_to(self, shared: Shared) -> None:
        """Keep of the transfers only those that an exchange does not make."""
        self.transfers = list(shared.own)
        self._read_for(self.transfers)
        self.reads += shared.reads
        self.report.bytes_read = shared.bytes_read + sum(transfer.num_bytes for transfer in self.transfers)
        self.report.bytes_received = shared.received
        self.report.files = sorted({read.file.path.name for read in self.reads})

    def _read_for(self, transfers: Iterable[Transfer]) -> None:
        self.reads = [read for transfer in transfers for read in transfer.reads]
        self.reads += [read for tie in self.doubts for read in tie.reads()]
        self.report.files = sorted({read.file.path.name for read in self.reads})

    def check_ties(self) -> None:
        """Raise CheckpointError if destinations that share memory would get different values."""
        for doubt in (*self.doubts, *self.overlaps):
            doubt.check()


def _below(prefix: str, values: Mapping[str, T]) -> dict[str, T]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def _read(source: StoredTensor | Derived) -> Tensor:
    value = torch.empty(source.shape, dtype=source.dtype, device="cpu")
    for transfer in transfers(source, Box.whole(source.shape), value):
        transfer.run()
    return value


def _blocks(reads: Iterable[Read]) -> dict[str, np.ndarray]:
    """Path of a file -> the MiB of it that are read."""
    needed: dict[str, list[np.ndarray]] = {}
    for read in reads:
        needed.setdefault(str(read.file.path), []).append(read.blocks())
    return {path: ascending(parts) for path, parts in needed.items()}


def _verify(plan: LoadPlan, needed: dict[str, np.ndarray], ranks: Ranks, failure: str) -> None:
    """Check every MiB that some rank reads, each by one of the ranks that do."""
    files = {str(read.file.path): read.file for read in plan.reads}
    if ranks.size > 1:
        with in_touch(failure):
            told = ranks.gather({path: _pack(blocks) for path, blocks in needed.items()})
        needed = {path: _share(path, blocks, told, ranks.rank) for path, blocks in needed.items()}

    def check() -> None:
        for path, blocks in needed.items():
            files[path].check_blocks(blocks)
        plan.check_ties()

    all_or_none(ranks, check, failure)


def _pack(blocks: np.ndarray) -> str:
    marks = np.zeros(int(blocks.max()) + 1 if len(blocks) else 0, dtype=bool)
    marks[blocks] = True
    return np.packbits(marks).tobytes().hex()


def _share(name: str, blocks: np.ndarray, told: list[dict[str, str]], rank: int) -> np.ndarray:
    """Those of `blocks` that this rank checks: of the ranks that read one, each takes its turn."""
    size = int(blocks.max()) + 1 if len(blocks) else 0
    reads = np.zeros((len(told), size), dtype=bool)
    for other, table in enumerate(told):
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(table.get(name, "")), dtype=np.uint8))[:size].astype(bool)
        reads[other, : len(bits)] = bits
    before = reads[:rank].sum(axis=0)[blocks]
    return blocks[blocks % reads.sum(axis=0)[blocks] == before]


def _absent(problem: str, names: list[str], known: list[str]) -> str:
    near = near_names(names[0], known)
    return f"{len(names)} tensors {problem}: {_some(names)}" + (f" (did you mean {near[0]}?)" if near else "")


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
