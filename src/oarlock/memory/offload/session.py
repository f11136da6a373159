"""Decides for each storage that autograd saves, while a model trains: kept, sent to the second tier, or made again.

One session follows a model from its first forward pass to its last backward pass. What belongs to one graph dies with
that graph, whether it ran backward, in part, twice, or never.
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from oarlock.memory.offload.calls import OUTSIDE, Call, CallKey, Calls, SaveKey
from oarlock.memory.offload.checkpoint import run
from oarlock.memory.offload.meter import Meter
from oarlock.memory.offload.saved import Handle, Held, Saved, SavedView, View, Wrapped, is_plain
from oarlock.memory.offload.tiers import Tier
from oarlock.memory.pool import OutOfMemoryError, Pool, Pressure

Choice = Literal["keep", "recompute", "offload"]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """What a session does, and when. Moments are numbered: each first save and each first need of a storage is one.

    Attributes:
        choices: by the first save of a storage; others are kept.
        regions: calls whose storages may be made again; of each the keys of the storages that its arguments lie in.
        saves, needs: the moment of each storage.
        releases, fetches: (moment, storage), in order: device memory is given back; a copy back begins.
    """

    choices: Mapping[SaveKey, Choice] = dataclasses.field(default_factory=dict)
    regions: Mapping[CallKey, Sequence[SaveKey | None]] = dataclasses.field(default_factory=dict)
    saves: Mapping[SaveKey, int] = dataclasses.field(default_factory=dict)
    needs: Mapping[SaveKey, int] = dataclasses.field(default_factory=dict)
    releases: Sequence[tuple[int, SaveKey]] = ()
    fetches: Sequence[tuple[int, SaveKey]] = ()


class Observer:
    """Told what a session sees; the profiler is one."""

    def begin_call(self, call: Call, arguments: Any) -> None: ...
    def end_call(self, call: Call) -> None: ...
    def saved(self, key: SaveKey, call: Call, tensor: Tensor) -> None:
        """`key` is that of the first save of the storage."""

    def needed(self, key: SaveKey) -> None: ...


class Session:
    """While entered, autograd's saved tensors of a model are handled as a schedule says.

    Args:
        model: any module; its parameters, buffers and views of them are never moved.
        device: whose storages are handled.
        schedule: what to do.
        tier: where to.
        min_bytes: smaller storages are kept.
        at_once: release each storage as soon as it is sent, and wait for it.
        observer: told what happens.
        meter: whose pressure this session answers by sending out what is kept.
        pool: likewise; a callback that was set on it before is asked when nothing more can leave.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        device: torch.device,
        schedule: Schedule | None = None,
        tier: Tier | None = None,
        min_bytes: int = 1 << 14,
        at_once: bool = False,
        observer: Observer | None = None,
        meter: Meter | None = None,
        pool: Pool | None = None,
    ) -> None:
        self._model, self._device, self._tier = model, device, tier
        self._schedule = schedule or Schedule()
        self._min_bytes, self._at_once = min_bytes, at_once
        self._observer = observer or Observer()
        self._meter, self._pool = meter, pool
        self._calls = Calls(model, self._begin_pass, self._observer.begin_call, self._observer.end_call)
        self._known: dict[int, _Known] = {}
        self._alive: weakref.WeakSet[Saved] = weakref.WeakSet()
        self._by_key: weakref.WeakValueDictionary[SaveKey, Saved] = weakref.WeakValueDictionary()
        self._weights: set[int] = set()
        self._moment = -1
        self._num_released = self._num_fetched = 0
        self._inputs: Iterator[SaveKey | None] | None = None  # of the region that begins
        self._stack = ExitStack()
        self._evicting = threading.RLock()
        self._busy = False
        self.stalled = 0.0
        self.evicted_bytes = 0

    # ---------------------------------------------------------------------------------------------------- entering

    def __enter__(self) -> Self:
        """
        Raises:
            ValueError: the schedule is for another model.
        """
        modules = dict(self._model.named_modules())
        paths = {key[1]: None for key in (*self._schedule.choices, *self._schedule.regions)}
        if missing := [path for path in paths if path not in modules and path != OUTSIDE]:
            raise ValueError(
                f"the plan is for another model: it speaks of a module {missing[0]!r}, and "
                f"{type(self._model).__name__} has none of that name; profile and plan this one"
            )
        self._calls.attach()
        self._stack.callback(self._calls.detach)
        for path in {key[1] for key in self._schedule.regions}:
            self._recomputable(modules[path])
        self._note_weights()
        if self._meter is not None and self._tier is not None:
            self._meter.pressure = self._make_room
            self._stack.callback(setattr, self._meter, "pressure", None)
        if self._pool is not None and self._tier is not None:
            before = self._pool.pressure
            self._pool.set_pressure(partial(self._make_pool_room, self._pool, before))
            self._stack.callback(self._pool.set_pressure, before)
        self._stack.enter_context(saved_tensors_hooks(self._pack_outside, lambda handle: handle.get()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _recomputable(self, module: nn.Module) -> None:
        """The module's forward goes through a checkpoint where the schedule says so."""
        forward = module.forward
        own = module.__dict__.get("forward")

        def through_checkpoint(*args: Any, **kwargs: Any) -> Any:
            call = self._calls.current
            if self._calls.is_muted or call.key not in self._schedule.regions or not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            needs: list[int | None] = []  # of each save inside, in order

            def hold(tensor: Tensor) -> Handle | None:
                self._inputs = None
                handle = self._pack(tensor, self._calls.current.next_save(), in_region=True)
                again = isinstance(handle, tuple)
                needs.append(self._schedule.needs.get(handle) if again else None)
                return None if again else handle

            self._inputs = iter(self._schedule.regions[call.key])
            try:
                return run(
                    forward,
                    args,
                    kwargs,
                    hold=hold,
                    needed=lambda number: self._pass_moment(needs[number]),
                    recomputing=self._calls.muted,
                )
            finally:
                self._inputs = None

        module.forward = through_checkpoint
        if own is None:
            self._stack.callback(module.__dict__.pop, "forward")
        else:
            self._stack.callback(setattr, module, "forward", own)

    def _begin_pass(self) -> bool:
        self._note_weights()
        if len(self._alive):
            return True
        self._moment, self._num_released, self._num_fetched = -1, 0, 0
        return False

    def _note_weights(self) -> None:
        tensors = (*self._model.parameters(), *self._model.buffers())
        self._weights = {tensor.untyped_storage()._cdata for tensor in tensors if is_plain(tensor)}

    # ------------------------------------------------------------------------------------------------------ saving

    def _pack_outside(self, tensor: Tensor) -> Handle:
        """Outside of a region everything is kept or sent."""
        key = next(self._inputs, _END) if self._inputs is not None else _END
        handle = self._pack(tensor, self._calls.current.next_save() if key is _END else key, in_region=False)
        assert not isinstance(handle, tuple)
        return handle

    def _pack(self, tensor: Tensor, key: SaveKey | None, *, in_region: bool) -> Handle | SaveKey:
        """A handle, or the key of a storage that is made again."""
        if not is_plain(tensor):
            if hasattr(tensor, "__tensor_flatten__") and not isinstance(tensor, torch._subclasses.FakeTensor):
                return Wrapped(tensor, lambda inner: self._pack_inner(inner))
            return Held(tensor)
        storage = tensor.untyped_storage()
        if self._stays(tensor, storage):
            return Held(tensor)
        known = self._known.get(storage._cdata)
        if known is None or known.version != tensor._version:
            choice = "keep" if key is None else self._schedule.choices.get(key, "keep")
            first = key if key is not None else (-1, "", 0, 0)
            known = self._known[storage._cdata] = _Known(storage, tensor._version, first, self._known)
            known.again = choice == "recompute" and in_region
        self._observer.saved(known.key, self._calls.current, tensor)
        if known.again and in_region:
            self._pass_moment(self._schedule.saves.get(known.key))
            return known.key
        saved = known.saved() if known.saved is not None else None
        if saved is None:
            saved = Saved(known.key, tensor)
            known.saved = weakref.ref(saved)
            self._alive.add(saved)
            self._by_key[known.key] = saved
            handle = _Asking(self, saved, View.of(tensor))
            if (self._tier is not None and self._schedule.choices.get(known.key) == "offload") or self._at_once:
                assert self._tier is not None
                saved.send(self._tier)
                if self._at_once:
                    self.stalled += saved.release()
            self._pass_moment(self._schedule.saves.get(known.key))
            return handle
        return _Asking(self, saved, View.of(tensor))

    def _pack_inner(self, tensor: Tensor) -> Handle:
        handle = self._pack(tensor, self._calls.current.next_save(), in_region=False)
        assert not isinstance(handle, tuple)
        return handle

    def _stays(self, tensor: Tensor, storage: torch.UntypedStorage) -> bool:
        """Small, elsewhere, or a weight: also one that is unsharded for this call only, or seen through a view."""
        if tensor.device != self._device or storage.nbytes() < self._min_bytes or storage._cdata in self._weights:
            return True
        if isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
            return True
        module = self._calls.current.module
        own = (*module._parameters.values(), *module._buffers.values())
        return any(
            each is not None and is_plain(each) and each.untyped_storage()._cdata == storage._cdata for each in own
        )

    # ----------------------------------------------------------------------------------------------------- needing

    def _needed(self, saved: Saved) -> None:
        self._observer.needed(saved.key)
        self._pass_moment(self._schedule.needs.get(saved.key))

    def _pass_moment(self, moment: int | None) -> None:
        """Does what is due at a moment, and what was due at moments that never came."""
        if moment is None or moment <= self._moment:
            return
        self._moment = moment
        releases, fetches = self._schedule.releases, self._schedule.fetches
        while self._num_released < len(releases) and releases[self._num_released][0] <= moment:
            saved = self._by_key.get(releases[self._num_released][1])
            self._num_released += 1
            if saved is not None:
                self.stalled += saved.release()
        while self._num_fetched < len(fetches) and fetches[self._num_fetched][0] <= moment:
            saved = self._by_key.get(fetches[self._num_fetched][1])
            self._num_fetched += 1
            if saved is not None:
                saved.fetch()

    # ---------------------------------------------------------------------------------------------------- pressure

    def _make_room(self, num_bytes: int) -> bool:
        """For the meter, which cannot count the bytes of a new storage."""
        assert self._meter is not None
        meter, limit = self._meter, self._meter.live - num_bytes
        return self._evict(num_bytes, lambda: meter.live <= limit)

    def _make_pool_room(self, pool: Pool, otherwise: Pressure | None, num_bytes: int, stream: int) -> bool:
        """For the pool, on the thread of a request that it cannot meet."""
        try:
            if self._evict(num_bytes, lambda: pool.fits([num_bytes], stream=stream)):
                return True
        except (OSError, OutOfMemoryError):  # of the second tier; the pool names it where nobody else helps
            if otherwise is not None and otherwise(num_bytes, stream):
                return True
            raise
        return otherwise is not None and otherwise(num_bytes, stream)

    def _evict(self, num_bytes: int, is_enough: Callable[[], bool]) -> bool:
        """Sends out what nobody else holds: the smallest that suffices, else the largest first. All copies that the
        bytes need are begun before one is waited for, and each is complete before its memory is given back. Returns
        whether it is enough now."""
        with self._evicting:  # another thread's request waits: this one may serve it, too
            if self._busy or self._tier is None:
                return False
            self._busy = True
            try:
                going = [each for each in list(self._alive) if each.is_leaving]  # on its way anyway
                # A tensor that the program holds, or an operation works on, gives nothing back.
                rest = [each for each in list(self._alive) if each.may_leave and not each.is_held_elsewhere]
                while True:
                    self._begin_to_leave(num_bytes, going, rest)
                    if not going:
                        return False
                    while going:
                        self.stalled += going.pop(0).release()
                        if is_enough():
                            return True
            finally:
                self._busy = False

    def _begin_to_leave(self, num_bytes: int, going: list[Saved], rest: list[Saved]) -> None:
        """Moves of `rest` to `going` what is missing there, or what the tier takes of it; its error if it is none."""
        assert self._tier is not None
        missing = num_bytes - sum(each.num_bytes for each in going if not each.is_held_elsewhere)
        while rest and missing > 0:
            saved = min(rest, key=lambda each: (each.num_bytes < missing, abs(each.num_bytes - missing)))
            try:
                saved.send(self._tier)
            except (OSError, OutOfMemoryError):
                if not going:
                    raise
                return
            rest.remove(saved)
            going.append(saved)
            self.evicted_bytes += saved.num_bytes
            missing -= saved.num_bytes


_END: Any = object()


class _Known:
    """A storage that lives and was saved; forgotten with the storage."""

    def __init__(self, storage: torch.UntypedStorage, version: int, key: SaveKey, known: dict[int, _Known]) -> None:
        self.version, self.key = version, key
        self.again = False
        self.saved: weakref.ref[Saved] | None = None
        number = storage._cdata

        def forget(_: object) -> None:
            if known.get(number) is self:
                del known[number]

        self._ref = weakref.ref(storage, forget)


class _Asking(SavedView):
    """A view whose need is a moment of the schedule."""

    __slots__ = ("_session",)

    def __init__(self, session: Session, saved: Saved, view: View) -> None:
        super().__init__(saved, view)
        saved.expect()
        self._session = session

    def get(self) -> Tensor:
        self._session._needed(self.saved)
        before = self.saved.stalled
        try:
            return super().get()
        finally:
            self._session.stalled += self.saved.stalled - before
