"""One training step, measured: what lives when, what autograd saves and needs again, and how long it all takes.

The first pass sends everything that autograd saves out at once, so that each storage dies where the program itself
drops it; the passes after it keep everything and look at the clock.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_iter

from oarlock.memory.offload.calls import Call, CallKey, SaveKey
from oarlock.memory.offload.meter import Meter
from oarlock.memory.offload.saved import is_plain
from oarlock.memory.offload.session import Observer, Session
from oarlock.memory.offload.tiers import Copying, HostTier, PinnedTier, Place, Tier
from oarlock.memory.pool import OutOfMemoryError


@dataclasses.dataclass(frozen=True)
class Group:
    """One storage that autograd saves, or that a module takes. Positions count events of the step.

    Attributes:
        key: of its first save.
        num_bytes: of the storage.
        begin: where it is made; -1 before the step.
        death: where the program drops it, were it not saved.
        save, need: its first save, and where the backward pass first asks for it; None if that never happens.
        last_save: its last save.
        end: where the backward pass drops it for good.
    """

    key: SaveKey
    num_bytes: int
    begin: int
    death: int
    save: int | None
    need: int | None
    last_save: int
    end: int


@dataclasses.dataclass(frozen=True)
class Region:
    """A call of a module that could be computed again.

    Attributes:
        key: of the call; begin, end: its positions.
        inputs: of each tensor among its arguments the group; None for weights, small tensors and what lives anyway.
        inside: groups that are made and saved in it only.
    """

    key: CallKey
    begin: int
    end: int
    inputs: tuple[int | None, ...]
    inside: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Profile:
    """A measured step.

    Attributes:
        static_bytes: what lived before it.
        deltas: int64 [events] bytes made or dropped; numbers: int64 [events] of which storage, -1 for none.
        groups, regions: what may be kept, sent out, or made again.
        moments: (position, group) of each first save and first need, in order.
        seconds: float64 [moments + 2] from the beginning: to the begin, each moment, and the end.
        clock: float64 [events] seconds at each event, between moments by position.
        out_rate, in_rate: bytes per second to the second tier and back.
        min_bytes: smaller storages are not looked at.
        tier_bytes: that the second tier holds; None for as many as there are.
        marks: (position, name) of each call's begin and end, save and first need, in order; names are hashable.
    """

    static_bytes: int
    deltas: NDArray[np.int64]
    numbers: NDArray[np.int64]
    groups: tuple[Group, ...]
    regions: tuple[Region, ...]
    moments: tuple[tuple[int, int], ...]
    clock: NDArray[np.float64]
    out_rate: float
    in_rate: float
    min_bytes: int
    tier_bytes: int | None = None
    marks: tuple[tuple[int, Any], ...] = ()

    @property
    def seconds(self) -> float:
        """Of the step with everything kept."""
        return float(self.clock[-1])

    @property
    def saved_bytes(self) -> int:
        """Of all that autograd saves."""
        return sum(group.num_bytes for group in self.groups if group.save is not None)


def profile(
    model: nn.Module,
    step: Callable[[], object],
    *,
    tier: Tier,
    device: torch.device | str = "cpu",
    optimizers: Iterable[torch.optim.Optimizer] = (),
    min_bytes: int = 1 << 14,
    repeats: int = 2,
) -> Profile:
    """Measures a step.

    Args:
        model: what `step` trains.
        step: one forward and backward pass; it is called 2 + repeats times and must do the same each time.
        tier: whose rates are measured.
        device: of the model.
        optimizers: whose states count as memory, too.
        min_bytes: smaller storages are always kept.
        repeats: passes for the clock; of each interval the fastest counts.

    Raises:
        ValueError: the step never calls the model with gradients, or it runs several backward passes.
    """
    device = torch.device(device)
    optimizers = list(optimizers)
    out_rate, in_rate = measured_rates(tier, device)
    step()
    seen = _Recorder(min_bytes)
    with _aside(device) as aside:
        meter = seen.meter = Meter(device, note=seen.memory)
        meter.watch(model, *optimizers)
        seen.begin(meter.live)
        with (
            meter,
            Session(model, device=device, tier=aside, min_bytes=min_bytes, at_once=True, observer=seen),
        ):
            step()
        seen.finish()
    clocks = []
    for _ in range(repeats):
        timed = _Clock(device)
        meter = Meter(device)
        with meter, Session(model, device=device, min_bytes=min_bytes, observer=timed):
            timed.tick("begin")
            step()
            timed.tick("end")
        clocks.append(timed.seconds)
    measured = seen.profile(clocks, out_rate, in_rate, min_bytes)
    return measured if tier.capacity is None else dataclasses.replace(measured, tier_bytes=tier.capacity)


def measured_rates(tier: Tier, device: torch.device) -> tuple[float, float]:
    """Bytes per second out and back, by a copy of 4 KiB, or up to 8 MiB where that takes no time and there is room."""
    rates = []
    for copy in (tier.write, tier.read):
        rate = 0.0
        for num_bytes in (1 << 12, 1 << 18, 1 << 23):
            try:
                seconds = _seconds(tier, copy, torch.zeros(num_bytes, dtype=torch.uint8, device=device))
            except OutOfMemoryError:
                if not rate:
                    raise
                break
            rate = num_bytes / seconds
            if seconds > 5e-3:
                break
        rates.append(rate)
    return rates[0], rates[1]


def _seconds(tier: Tier, copy: Callable[[Place, Tensor], Copying], bytes_N: Tensor) -> float:
    place = tier.take(bytes_N.numel())
    tier.write(place, bytes_N).wait()
    began = time.perf_counter()
    copy(place, bytes_N).wait()
    return time.perf_counter() - began


def _aside(device: torch.device) -> Tier:
    return HostTier() if device.type == "cpu" else PinnedTier(device)


class _Clock(Observer):
    """The first time of everything that happens."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.seconds: dict[Any, float] = {}

    def tick(self, what: Any) -> None:
        if what not in self.seconds:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            self.seconds[what] = time.perf_counter()

    def begin_call(self, call: Call, arguments: Any) -> None:
        self.tick(("begin", call.key))

    def end_call(self, call: Call) -> None:
        self.tick(("end", call.key))

    def saved(self, key: SaveKey, call: Call, tensor: Tensor) -> None:
        self.tick(("save", key))

    def needed(self, key: SaveKey) -> None:
        self.tick(("need", key))


class _Recorder(Observer):
    """The events of a step, in order."""

    def __init__(self, min_bytes: int) -> None:
        self.meter: Meter | None = None
        self._min_bytes = min_bytes
        self._events: list[tuple[int, int]] = []  # (storage or -1, bytes)
        self._what: dict[int, Any] = {}  # position -> name for the clock
        self._static = 0
        self._active = False
        self._storage: dict[SaveKey, tuple[int | None, int]] = {}  # number and bytes
        self._saves: dict[SaveKey, list[int]] = {}
        self._needs: dict[SaveKey, int] = {}
        self._calls: list[dict[str, Any]] = []
        self._open: list[dict[str, Any]] = []

    def begin(self, static_bytes: int) -> None:
        self._static, self._active = static_bytes, True

    def finish(self) -> None:
        self._active = False

    def memory(self, number: int, num_bytes: int) -> None:
        if self._active:
            self._events.append((number, num_bytes))

    def _mark(self, what: Any) -> int:
        self._events.append((-1, 0))
        self._what[len(self._events) - 1] = what
        return len(self._events) - 1

    def begin_call(self, call: Call, arguments: Any) -> None:
        assert self.meter is not None
        inputs = [self._input(leaf) for leaf in tree_iter(arguments) if isinstance(leaf, Tensor)]
        record = {"key": call.key, "begin": self._mark(("begin", call.key)), "inputs": inputs, "call": call}
        record["state"] = _state(call.module)
        self._calls.append(record)
        self._open.append(record)

    def _input(self, tensor: Tensor) -> tuple[int, int] | None:
        assert self.meter is not None
        if not is_plain(tensor) or tensor.device != self.meter.device or isinstance(tensor, nn.Parameter):
            return None
        storage = tensor.untyped_storage()
        number = self.meter.number(storage)
        return None if number is None or storage.nbytes() < self._min_bytes else (number, storage.nbytes())

    def end_call(self, call: Call) -> None:
        position = self._mark(("end", call.key))
        while self._open:  # an exception may have left some open
            record = self._open.pop()
            record["end"] = position
            record["changes"] = _changes(record["call"].module, record.pop("state"))
            if record["key"] == call.key:
                break

    def saved(self, key: SaveKey, call: Call, tensor: Tensor) -> None:
        assert self.meter is not None
        if key in self._needs:
            raise ValueError("the step to profile must be one forward and backward pass; it runs several")
        storage = tensor.untyped_storage()
        self._storage.setdefault(key, (self.meter.number(storage), storage.nbytes()))
        self._saves.setdefault(key, []).append(self._mark(("save", key)))

    def needed(self, key: SaveKey) -> None:
        if key not in self._needs:
            self._needs[key] = self._mark(("need", key))

    # ----------------------------------------------------------------------------------------------------- summary

    def profile(self, clocks: list[dict[Any, float]], out_rate: float, in_rate: float, min_bytes: int) -> Profile:
        if not self._calls:
            raise ValueError("the step never called the model with gradients")
        numbers = np.array([number for number, _ in self._events], np.int64)
        deltas = np.array([delta for _, delta in self._events], np.int64)
        begins: dict[int, int] = {}
        deaths: dict[int, int] = {}
        for position, (number, delta) in enumerate(self._events):
            (begins if delta > 0 else deaths)[number] = position
        end = len(self._events)
        groups: list[Group] = []
        by_number: dict[int, int] = {}
        for key, saves in self._saves.items():
            number, num_bytes = self._storage[key]
            begin, death = (-1, end) if number is None else (begins.get(number, -1), deaths.get(number, end))
            need = self._needs.get(key)
            last = end if need is None else need
            if need is not None and need + 1 < end and deltas[need + 1] == num_bytes:  # the copy that came back
                last = deaths.get(int(numbers[need + 1]), end)
            groups.append(Group(key, num_bytes, begin, death, saves[0], need, saves[-1], last))
            if number is not None:
                by_number[number] = len(groups) - 1
        regions = []
        for record in self._calls:
            if record["call"].parent.parent is None or "end" not in record:
                continue
            if record["changes"] or _has_running_statistics(record["call"]):
                continue
            begin, stop = record["begin"], record["end"]
            inside = tuple(
                i for i, g in enumerate(groups) if begin < g.begin and g.save is not None and g.last_save < stop
            )
            if not inside:
                continue
            inputs: list[int | None] = []
            for place, found in enumerate(record["inputs"]):
                if found is None or begins.get(found[0], -1) < 0:
                    inputs.append(None)
                    continue
                if found[0] not in by_number:
                    by_number[found[0]] = len(groups)
                    number, num_bytes = found
                    death = deaths.get(number, end)
                    key = (*record["key"], -1 - place)
                    groups.append(Group(key, num_bytes, begins[number], death, None, None, begin, begin))
                inputs.append(by_number[found[0]])
            regions.append(Region(record["key"], begin, stop, tuple(inputs), inside))
        moments = [(group.save, i) for i, group in enumerate(groups) if group.save is not None]
        moments += [(group.need, i) for i, group in enumerate(groups) if group.need is not None]
        return Profile(
            static_bytes=self._static,
            deltas=deltas,
            numbers=numbers,
            groups=tuple(groups),
            regions=tuple(regions),
            moments=tuple(sorted(moments)),
            clock=self._clock(clocks, end),
            out_rate=out_rate,
            in_rate=in_rate,
            min_bytes=min_bytes,
            marks=tuple(self._what.items()),
        )

    def _clock(self, clocks: list[dict[Any, float]], end: int) -> NDArray[np.float64]:
        """Seconds at each event: of each interval between marks that all passes have the fastest, evenly inside."""
        common = [(position, what) for position, what in self._what.items() if all(what in clock for clock in clocks)]
        at = np.array([[clock["begin"], *(clock[what] for _, what in common), clock["end"]] for clock in clocks])
        steps = np.maximum(np.diff(at, axis=1), 0).min(axis=0)
        positions = [0, *(position for position, _ in common), end]
        return np.interp(np.arange(end + 1), positions, np.concatenate([[0.0], np.cumsum(steps)]))


def _has_running_statistics(call: Call) -> bool:
    """Whether computing the call again would count a batch twice."""
    return any(
        isinstance(module, _NormBase) and module.training and module.track_running_stats
        for module in call.module.modules()
    )


def _state(module: nn.Module) -> list[tuple[Tensor, int]]:
    """Parameters and buffers with their versions."""
    tensors = (*module.parameters(), *module.buffers())
    return [(tensor, 0 if tensor.is_inference() else tensor._version) for tensor in tensors]


def _changes(module: nn.Module, before: list[tuple[Tensor, int]]) -> bool:
    """Whether a call has changed parameters or buffers, in place or by others: a second call would do it twice."""
    after = _state(module)
    return len(before) != len(after) or any(
        a[0] is not b[0] or a[1] != b[1] for a, b in zip(before, after, strict=True)
    )
