"""Routes: from what every rank needs to who sends what to whom, in messages; and the exchange itself.

Every rank plans only what it receives. It tells all ranks how many bytes it lacks of what (one gather), all of them
share these out among the holders in the same way, and each then asks the senders for boxes of lattices.
"""

import json
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from oarlock.checkpoint.agreement import all_or_none, in_touch
from oarlock.checkpoint.boxes import Box
from oarlock.checkpoint.reshard_balance import Quotas, balance
from oarlock.checkpoint.reshard_units import Request, Unit, Use, units_of
from oarlock.ranks import Ranks

ALONE_BYTES = 256 << 10
"""A unit from this size on is a message of its own, which may need no staging."""
_ALIGNMENT = 64

Views = Mapping[str, Sequence[tuple[Box, Tensor]]]
"""This rank's memory: name -> boxes of the source tensor, each with a view of it."""


Outgoing = Sequence[Request]
Incoming = Sequence[Unit]
"""A message: its parts one after the other, those of large items first, so that all are aligned without gaps."""


@dataclass(frozen=True)
class Routes:
    """What this rank copies, sends and receives, by phase."""

    local: Mapping[int, Sequence[tuple[Use, Tensor | None, tuple[int, ...]]]]
    """Phase -> uses, each with the memory it reads and that memory's corner."""
    outgoing: Mapping[int, Mapping[int, Sequence[Outgoing]]]
    incoming: Mapping[int, Mapping[int, Sequence[Incoming]]]
    """Phase -> peer -> messages."""
    traffic: Sequence[Sequence[int]]
    """[sender][receiver] -> bytes."""
    _staging: dict[str, Tensor] = field(default_factory=dict)
    """Kept between rounds and runs: fresh pages cost more than what is written into them."""

    @torch.no_grad()
    def run(self, ranks: Ranks, phase: int, failure: str) -> None:
        """Fill the destinations of a phase; all ranks call it.

        Raises:
            CheckpointError: `failure`, and why, on all ranks: one failed, or is gone.
        """
        failures: list[BaseException] = []  # kept until the end: other ranks count on the messages
        try:
            self._exchange(ranks, phase, failures)
        except RuntimeError as error:
            failures.append(error)

        def finish() -> None:
            if failures:
                raise failures[0]

        all_or_none(ranks, finish, failure)

    def _exchange(self, ranks: Ranks, phase: int, failures: list[BaseException]) -> None:
        outgoing, incoming = self.outgoing.get(phase, {}), self.incoming.get(phase, {})
        num_rounds = max(map(len, (*outgoing.values(), *incoming.values())), default=0)
        device = ranks.device if num_rounds else torch.device("cpu")
        for number in range(num_rounds):
            sends, receives = (
                _Round({peer: m[number] for peer, m in messages.items() if number < len(m)}, device, staging)
                for messages, staging in ((outgoing, self._staged("sent")), (incoming, self._staged("received")))
            )
            _keep(failures, sends.pack)
            works = ranks.start(sends.buffers, receives.buffers)
            if number == 0:
                _keep(failures, lambda: self._copy(phase))
            for work in works:
                work.wait()
            _keep(failures, receives.unpack)
        if not num_rounds:
            _keep(failures, lambda: self._copy(phase))

    def _staged(self, what: str) -> Callable[[int, torch.device], Tensor]:
        def staging(num_bytes: int, device: torch.device) -> Tensor:
            if what not in self._staging or len(self._staging[what]) < num_bytes:
                self._staging.pop(what, None)  # before there are two
                self._staging[what] = torch.empty(num_bytes, dtype=torch.uint8, device=device)
            return self._staging[what]

        return staging

    def _copy(self, phase: int) -> None:
        for use, source, origin in self.local.get(phase, ()):
            assert use.home.tensor is not None
            if source is None:
                use.block.copy(use.home.tensor, use.home.tensor)
            else:
                use.block.copy(source, use.home.tensor, origin=origin)


def _keep(failures: list[BaseException], action: Callable[[], None]) -> None:
    try:
        action()
    except Exception as error:
        failures.append(error)


class _Round:
    """One message from or to each peer: memory for it, part of one staging buffer unless it can be used in place."""

    def __init__(
        self,
        messages: Mapping[int, Sequence[Any]],
        device: torch.device,
        staging: Callable[[int, torch.device], Tensor],
    ) -> None:
        self.buffers: dict[int, Tensor] = {}
        self._staged: list[tuple[Any, Tensor]] = []
        starts, total = {}, 0
        for peer, parts in messages.items():
            direct = parts[0].direct() if len(parts) == 1 else None
            if direct is not None and direct.device == device:
                self.buffers[peer] = direct
            else:
                starts[peer] = total
                total += -(-sum(part.num_bytes for part in parts) // _ALIGNMENT) * _ALIGNMENT
        memory = staging(total, device)
        for peer, start in starts.items():
            place = start
            for part in messages[peer]:
                data = memory[place : place + part.num_bytes]
                self._staged.append((part, data.view(part.wire).view(part.box.size)))
                place += part.num_bytes
            self.buffers[peer] = memory[start:place]

    def pack(self) -> None:
        """Fill what is not sent in place."""
        for part, data in self._staged:
            part.pack(data)

    def unpack(self) -> None:
        """Distribute what was not received in place."""
        for part, data in self._staged:
            part.unpack(data)


def plan_routes(
    ranks: Ranks,
    uses: Iterable[Use],
    sets: Sequence[tuple[int, ...]],
    views: Views,
    *,
    staging_bytes: int,
    failure: str,
) -> Routes:
    """Agree on who sends what; all ranks call it.

    Args:
        uses: what this rank needs.
        sets: the ranks of every cell; the same on every rank.
        views: what this rank holds.
        staging_bytes: most bytes that a rank holds of messages that it sends, and as many that it receives.
        failure: for messages.
    """
    local: dict[int, list[tuple[Use, Tensor | None, tuple[int, ...]]]] = {}
    remote = []
    for use in uses:
        if use.cell is not None and ranks.rank not in use.cell.ranks:
            remote.append(use)
            continue
        origin, source = (), None
        if use.cell is not None:
            cell = use.cell.box
            held, source = next((box, view) for box, view in views[use.cell.name] if box.intersect(cell) == cell)
            origin = held.offset
        local.setdefault(use.phase, []).append((use, source, origin))
    units = units_of(remote)
    number = {holders: index for index, holders in enumerate(sets)}
    needs: dict[tuple[int, int], int] = {}
    for unit in units:
        key = unit.phase, number[unit.cell.ranks]
        needs[key] = needs.get(key, 0) + unit.num_bytes
    with in_touch(failure):
        told = ranks.gather([socket.gethostname(), [[*key, num_bytes] for key, num_bytes in needs.items()]])
    wanted = [{(phase, index): n for phase, index, n in entries} for _, entries in told]
    quotas = balance(wanted, sets, [place for place, _ in told])
    most_bytes = max(1, staging_bytes // _most_peers(quotas))
    incoming = _messages(_assign(units, number, quotas[ranks.rank]), most_bytes)
    outgoing, traffic = _ask(ranks, incoming, views, failure)
    return Routes(local, outgoing, incoming, traffic)


def _most_peers(quotas: Sequence[Quotas]) -> int:
    """The largest number of ranks that one rank sends to, or receives from, in a phase; at least 1."""
    senders: dict[tuple[int, int], set[int]] = {}
    receivers: dict[tuple[int, int], set[int]] = {}
    for receiver, of_receiver in enumerate(quotas):
        for (phase, _), shares in of_receiver.items():
            for sender in shares:
                senders.setdefault((phase, receiver), set()).add(sender)
                receivers.setdefault((phase, sender), set()).add(receiver)
    return max(map(len, (*senders.values(), *receivers.values())), default=1)


def _assign(
    units: Iterable[Unit], number: Mapping[tuple[int, ...], int], quotas: Quotas
) -> dict[int, dict[int, list[Unit]]]:
    """Phase -> sender -> units: the quotas of a set of holders are used up one after the other."""
    left = {key: list(shares.items()) for key, shares in quotas.items()}
    assigned: dict[int, dict[int, list[Unit]]] = {}
    for unit in units:
        shares = left[unit.phase, number[unit.cell.ranks]]
        rest: Unit | None = unit
        while rest is not None:
            sender, share = shares[0]
            last = len(shares) == 1
            parts = None if last or rest.num_bytes <= share else rest.cut(share)
            own, rest = parts if parts else (rest, None)
            if not last:
                shares[0] = sender, share - own.num_bytes
                if shares[0][1] <= 0 or parts:
                    shares.pop(0)
            assigned.setdefault(unit.phase, {}).setdefault(sender, []).append(own)
    return assigned


def _messages(
    assigned: Mapping[int, Mapping[int, Sequence[Unit]]], most_bytes: int
) -> dict[int, dict[int, list[list[Unit]]]]:
    """Phase -> sender -> messages of at most so many bytes."""
    result: dict[int, dict[int, list[list[Unit]]]] = {}
    for phase, by_sender in assigned.items():
        for sender, units in by_sender.items():
            messages: list[list[Unit]] = []
            small: list[Unit] = []
            free = 0
            for part in (part for unit in units for part in unit.pieces(most_bytes)):
                if part.num_bytes >= ALONE_BYTES:
                    messages.append([part])
                    continue
                if part.num_bytes > free or not small:
                    small = []
                    free = most_bytes
                    messages.append(small)
                small.append(part)
                free -= part.num_bytes
            for message in messages:
                message.sort(key=lambda part: -part.wire.itemsize)
            result.setdefault(phase, {})[sender] = messages
    return result


def _ask(
    ranks: Ranks, incoming: Mapping[int, Mapping[int, Sequence[Incoming]]], views: Views, failure: str
) -> tuple[dict[int, dict[int, list[list[Request]]]], list[list[int]]]:
    """Tell the senders what to send: phase -> receiver -> messages, and the bytes of every pair of ranks."""
    letters, num_bytes = [], []
    for sender in range(ranks.size):
        asked = {phase: by_sender[sender] for phase, by_sender in incoming.items() if sender in by_sender}
        num_bytes.append(sum(part.num_bytes for messages in asked.values() for m in messages for part in m))
        text = {phase: [[part.request() for part in m] for m in messages] for phase, messages in asked.items()}
        letters.append(json.dumps(text).encode() if text else b"")
    with in_touch(failure):
        told = ranks.gather([[len(letter) for letter in letters], num_bytes])
    traffic = [[told[receiver][1][sender] for receiver in range(ranks.size)] for sender in range(ranks.size)]
    if not any(length for lengths, _ in told for length in lengths):
        return {}, traffic
    data = [torch.frombuffer(bytearray(letter), dtype=torch.uint8) if letter else _NOTHING for letter in letters]
    outgoing: dict[int, dict[int, list[list[Request]]]] = {}

    def read() -> None:
        with ranks.together():
            received = ranks.exchange(data, [lengths[ranks.rank] for lengths, _ in told])
            for receiver, letter in enumerate(received):
                for phase, messages in json.loads(bytes(letter.numpy()) or b"{}").items():
                    parts = [[Request.read(asked, views) for asked in message] for message in messages]
                    outgoing.setdefault(int(phase), {})[receiver] = parts

    all_or_none(ranks, read, failure)
    return outgoing, traffic


_NOTHING = torch.empty(0, dtype=torch.uint8, device="cpu")
