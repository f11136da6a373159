"""Loading with an exchange: each byte of the files is read by one rank that needs it, and sent to the others that do.

Where ranks on several machines need the same bytes, or strips of the same rows, each would read them from the shared
storage. Instead, the rows that the same ranks need are divided among these, balanced by bytes and in long runs; what a
rank needs of the rows of others travels point to point, as when tensors are resharded in memory.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from oarlock.checkpoint.agreement import all_or_none, in_touch
from oarlock.checkpoint.boxes import Box
from oarlock.checkpoint.derived import Derived
from oarlock.checkpoint.distribution import exchange
from oarlock.checkpoint.reshard_balance import fill_up
from oarlock.checkpoint.reshard_routes import Routes, plan_routes
from oarlock.checkpoint.reshard_sources import Cell
from oarlock.checkpoint.reshard_units import Home, Step, Use, steps_of
from oarlock.checkpoint.stored import StoredPiece, StoredTensor
from oarlock.checkpoint.transfers import Compute, Read, Transfer, within
from oarlock.ranks import Ranks

Exchange = bool | Literal["node", "auto"]
"""True = all ranks together read each byte once; "node" = those of every machine do; False = every rank reads what it
needs; "auto" = as True, if the machines would otherwise read more than WORTH times the bytes that are needed."""

WORTH = 1.25
STAGING_BYTES = 64 << 20


@dataclass(frozen=True)
class Shared:
    """A load whose reading is shared.

    Attributes:
        reads: what this rank reads of the files.
        bytes_read: by this rank, of what is shared.
        received: by this rank from others, bytes.
        own: transfers that this rank makes from the files by itself: of tensors that are computed from others.
    """

    reads: Sequence[Read]
    bytes_read: int
    received: int
    own: Sequence[Transfer]
    _routes: Routes
    _ranks: Ranks

    def run(self, failure: str) -> None:
        """Read, send and fill; all ranks call it.

        Raises:
            CheckpointError: `failure` and why, on all ranks.
        """
        self._routes.run(self._ranks, 0, failure)


class Stretch(NamedTuple):
    """Rows of a piece that the same ranks need something of; the box is counted in the whole tensor."""

    piece: int
    box: Box
    needers: tuple[int, ...]
    num_bytes: int


def share(
    stored: Mapping[str, StoredTensor | Derived],
    transfers: Iterable[Transfer],
    ranks: Ranks,
    mode: Exchange,
    machines: Sequence[str],
    failure: str,
) -> Shared | None:
    """Agree on who reads what; all ranks call it, with the same tensors.

    Args:
        stored: what is loaded from, the same on all ranks.
        transfers: of this rank's plan.
        mode: not False.
        machines: of each rank.
        failure: for messages.

    Returns:
        None where "auto" finds that it is not worth while.
    """
    if mode == "auto" and len(set(machines)) == 1:
        return None  # what one rank has read is in the memory of the machine
    pieces = list(_pieces(stored))
    index = {id(piece): number for number, (_, piece) in enumerate(pieces)}
    steps: list[Step] = []
    own: list[Transfer] = []
    for transfer in transfers:
        if isinstance(transfer, Compute):
            own.append(transfer)
        else:
            steps += steps_of(transfer)
    needs: dict[str, dict[str, Any]] = {}
    for step in steps:
        if step.piece is not None:
            boxes = needs.setdefault(str(index[id(step.piece)]), {"boxes": []})["boxes"]
            boxes.append(step.block.source_box())
    with in_touch(failure):
        told = [table["needs"] for table in exchange(ranks, {"needs": needs})]
    groups = [[rank for rank, place in enumerate(machines) if place == machine] for machine in dict.fromkeys(machines)]
    if mode == "auto" and not _worth(_stretches(pieces, told, range(ranks.size)), machines):
        return None
    own_group = list(range(ranks.size)) if mode != "node" else next(g for g in groups if ranks.rank in g)
    readers = assign(_stretches(pieces, told, own_group), ranks.size)
    cells: dict[int, list[Cell]] = {}
    reads: list[Read] = []
    views: dict[str, list[Any]] = {}

    def prepare() -> None:
        for number, box, reader in readers:
            tensor, piece = pieces[number]
            cells.setdefault(number, []).append(Cell(Path(piece.file.path), str(number), box, (reader,)))
            if reader == ranks.rank:
                reads.append(Read(tensor, piece, box.within(piece.box)))
                if str(number) not in views:
                    views[str(number)] = [(piece.box, reads[-1].tensor())]

    all_or_none(ranks, prepare, failure)
    uses = [use for step in steps for use in _uses(step, cells, index)]
    sets = [(rank,) for rank in range(ranks.size)]
    routes = plan_routes(ranks, uses, sets, views, staging_bytes=STAGING_BYTES, failure=failure)
    return Shared(
        reads=reads,
        bytes_read=sum(read.box.volume * read.stored.dtype.itemsize for read in reads),
        received=sum(line[ranks.rank] for line in routes.traffic),
        own=own,
        _routes=routes,
        _ranks=ranks,
    )


def assign(stretches: Iterable[Stretch], num_ranks: int) -> list[tuple[int, Box, int]]:
    """Who reads what: (piece, box, rank). What the same ranks need is cut into one run of rows for each of them."""
    jobs: dict[tuple[int, ...], list[Stretch]] = {}
    for stretch in stretches:
        jobs.setdefault(stretch.needers, []).append(stretch)
    loads = [0] * num_ranks
    assigned = []
    for needers in sorted(jobs, key=len):
        shares = fill_up(sum(stretch.num_bytes for stretch in jobs[needers]), needers, loads)
        left = list(shares.items())
        for stretch in jobs[needers]:
            for box, num_bytes, reader in _cut(stretch, left):
                loads[reader] += num_bytes
                assigned.append((stretch.piece, box, reader))
    return assigned


def _cut(stretch: Stretch, left: list[tuple[int, int]]) -> Iterator[tuple[Box, int, int]]:
    """The rows of a stretch for the readers whose shares are left, in turn; used up shares are taken away."""
    dim = _first_dim(stretch.box)
    start, size = stretch.box.offset[dim] if stretch.box.size else 0, stretch.box.size[dim] if stretch.box.size else 1
    row, done = stretch.num_bytes // size, 0
    while done < size:
        reader, share = left[0]
        rows = size - done if len(left) == 1 else min(size - done, round(share / row))
        if rows:
            yield _rows(stretch.box, dim, start + done, start + done + rows), rows * row, reader
        done += rows
        left[0] = reader, share - rows * row
        if len(left) > 1 and (done < size or left[0][1] < row / 2):
            left.pop(0)


def _pieces(stored: Mapping[str, StoredTensor | Derived]) -> Iterator[tuple[StoredTensor, StoredPiece]]:
    """All pieces of all files that tensors are read from, each once, in the same order on all ranks."""
    seen: set[int] = set()
    for tensor in stored.values():
        for source in tensor.stored.values() if isinstance(tensor, Derived) else (tensor,):
            if id(source) not in seen:
                seen.add(id(source))
                yield from ((source, piece) for piece in source.pieces)


def _stretches(
    pieces: Sequence[tuple[StoredTensor, StoredPiece]], needs: Sequence[Mapping[str, Any]], ranks: Iterable[int]
) -> Iterator[Stretch]:
    """The rows that the same of some ranks need something of, in the order of the files."""
    by_piece: dict[int, list[tuple[int, Box]]] = {}
    for rank in ranks:
        for number, entry in needs[rank].items():
            boxes = {Box(tuple(offset), tuple(size)) for offset, size in entry["boxes"]}
            by_piece.setdefault(int(number), []).extend((rank, box) for box in boxes)
    for number in sorted(by_piece, key=lambda number: (str(pieces[number][1].file.path), number)):
        tensor, piece = pieces[number]
        wanted, dim = by_piece[number], _first_dim(piece.box)
        if not piece.box.size:
            yield Stretch(number, piece.box, tuple(sorted({rank for rank, _ in wanted})), tensor.dtype.itemsize)
            continue
        ends = sorted({end for _, box in wanted for end in (box.offset[dim], box.stop[dim])})
        for start, stop in pairwise(ends):
            inside = [(rank, box) for rank, box in wanted if box.offset[dim] < stop and start < box.stop[dim]]
            if inside:
                low = [min(box.offset[k] for _, box in inside) for k in range(len(piece.box.size))]
                high = [max(box.stop[k] for _, box in inside) for k in range(len(piece.box.size))]
                low[dim], high[dim] = start, stop
                box = Box(tuple(low), tuple(h - lo for lo, h in zip(low, high, strict=True)))
                needers = tuple(sorted({rank for rank, _ in inside}))
                yield Stretch(number, box, needers, box.volume * tensor.dtype.itemsize)


def _worth(stretches: Iterable[Stretch], machines: Sequence[str]) -> bool:
    """Whether the machines would read much more than once what is needed."""
    unique, total = 0, 0
    for stretch in stretches:
        unique += stretch.num_bytes
        total += stretch.num_bytes * len({machines[rank] for rank in stretch.needers})
    return total > WORTH * unique


def _uses(step: Step, cells: Mapping[int, Sequence[Cell]], index: Mapping[int, int]) -> Iterator[Use]:
    """A step as uses of what the readers of its piece have."""
    home = Home(step.target)
    if step.piece is None:
        yield Use(step.block, home, None, step.dtype)
        return
    reach = Box(*step.block.source_box())
    for cell in cells[index[id(step.piece)]]:
        if cell.box.intersect(reach) is not None:
            yield from (Use(block, home, cell, step.dtype) for block in within(step.block, cell.box))


def _first_dim(box: Box) -> int:
    """The dim along which a contiguous tensor of this size is cut into runs."""
    return next((dim for dim, size in enumerate(box.size) if size > 1), 0)


def _rows(box: Box, dim: int, start: int, stop: int) -> Box:
    if not box.size:
        return box
    offset, size = list(box.offset), list(box.size)
    offset[dim], size[dim] = start, stop - start
    return Box(tuple(offset), tuple(size))
