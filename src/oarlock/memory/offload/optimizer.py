"""Optimizer states in a second tier: a step takes them in by parts, each in time for its slot, and sends them back."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oarlock.memory.offload.saved import bytes_of, is_plain
from oarlock.memory.offload.tiers import Copying, Place, Tier


class OptimizerTier:
    """Steps an optimizer part by part; between steps its states are in the tier.

    The result is that of a whole step for optimizers that treat each parameter alone, as torch's do. Hooks on the
    optimizer's step are called for each part. Its `state_dict` and `load_state_dict` bring all states back first; the
    next step sends them out again. A step that fails leaves no state behind: each is on the device or in the tier.

    Args:
        optimizer: any whose states are tensors, or distributed ones; its learning rates and groups may be changed as
            usual.
        tier: where the states go.
        part_bytes: parameters of a part; states of two parts are on the device at a time.
        min_bytes: smaller states stay.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, tier: Tier, *, part_bytes: int = 64 << 20, min_bytes: int = 1 << 12
    ) -> None:
        self.optimizer, self._tier, self._min_bytes = optimizer, tier, min_bytes
        self._part_bytes = part_bytes
        self._away: dict[Tensor, _Away] = {}
        load = weakref.WeakMethod(self.load)

        def load_all(*_: Any) -> None:
            if (here := load()) is not None:
                here()

        optimizer.register_state_dict_pre_hook(load_all)
        optimizer.register_load_state_dict_pre_hook(load_all)

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """optimizer.step(), one part after the other; the next part's states come while one is computed.

        Raises:
            ValueError: a closure is given: it would be called for each part.
        """
        if closure is not None:
            raise ValueError("a closure cannot be evaluated between the parts of a step; call step() without one")
        parts = self._parts()
        groups = self.optimizer.param_groups
        whole = [group["params"] for group in groups]
        if parts:
            self._fetch(parts[0])
        leaving: list[Tensor] = []
        try:
            for number, part in enumerate(parts):
                if number + 1 < len(parts):
                    self._fetch(parts[number + 1])
                self._arrived(part)
                chosen = set(part)
                for group, params in zip(groups, whole, strict=True):
                    group["params"] = [p for p in params if p in chosen]
                self.optimizer.step()
                self._release(leaving)
                leaving = self._send(part)
        finally:
            for group, params in zip(groups, whole, strict=True):
                group["params"] = params
        self._release(leaving)

    def load(self) -> None:
        """Brings all states back, to save or change them; the next step sends them out again."""
        states = list(self._away)
        for state in states:
            self._away[state].fetch(self._tier)
        for state in states:
            self._take(state)

    def send(self) -> None:
        """Sends out all states that are here, without a step."""
        for part in self._parts():
            self._release(self._send(part))

    @property
    def away_bytes(self) -> int:
        """Bytes of states that are in the tier now."""
        return sum(away.num_bytes for away in self._away.values())

    def _parts(self) -> list[list[Tensor]]:
        parts: list[list[Tensor]] = [[]]
        size = 0
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if size and size + p.nbytes > self._part_bytes:
                    parts.append([])
                    size = 0
                parts[-1].append(p)
                size += p.nbytes
        return parts if parts[0] else []

    def _states(self, parameter: Tensor) -> list[Tensor]:
        values = self.optimizer.state.get(parameter, {}).values()
        tensors = [_own_part(value) for value in values if isinstance(value, Tensor)]
        return [t for t in tensors if t in self._away or (t.device == parameter.device and _fills_its_storage(t))]

    def _fetch(self, part: list[Tensor]) -> None:
        for p in part:
            for state in self._states(p):
                if state in self._away:
                    self._away[state].fetch(self._tier)

    def _arrived(self, part: list[Tensor]) -> None:
        for p in part:
            for state in self._states(p):
                if state in self._away:
                    self._take(state)

    def _take(self, state: Tensor) -> None:
        self._away[state].arrived()
        del self._away[state]

    def _send(self, part: list[Tensor]) -> list[Tensor]:
        sent = []
        for p in part:
            for state in self._states(p):
                if state.nbytes >= self._min_bytes and state not in self._away:
                    self._away[state] = _Away(state, self._tier)
                    sent.append(state)
        return sent

    def _release(self, states: list[Tensor]) -> None:
        for state in states:
            try:
                self._away[state].release()
            except BaseException:
                del self._away[state]  # it is where it was
                raise


def _own_part(tensor: Any) -> Tensor:
    """Of a distributed tensor the part on this rank itself, not a copy that a gradient could flow through."""
    with torch.no_grad():
        return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _fills_its_storage(tensor: Tensor) -> bool:
    return is_plain(tensor) and tensor.untyped_storage().nbytes() == tensor.nbytes > 0


class _Away:
    """A state in the tier; the tensor itself stays, without memory."""

    def __init__(self, state: Tensor, tier: Tier) -> None:
        self._state, self._shape, self._stride, self.num_bytes = state, state.shape, state.stride(), state.nbytes
        self._place: Place = tier.take(state.nbytes)
        self._out: Copying = tier.write(self._place, bytes_of(state.untyped_storage()))
        self._is_released = False
        self._back: Copying | None = None

    def release(self) -> None:
        self._out.wait()
        self._state.data = self._state.new_empty(0)
        self._is_released = True

    def fetch(self, tier: Tier) -> None:
        if not self._is_released or self._back is not None:
            return  # a step that failed has left it here
        self._state.data = torch.empty_strided(
            self._shape, self._stride, dtype=self._state.dtype, device=self._state.device
        )
        self._back = tier.read(self._place, bytes_of(self._state.untyped_storage()))

    def arrived(self) -> None:
        if not self._is_released:
            self._out.cancel()
            return
        assert self._back is not None
        try:
            self._back.wait()
        except BaseException:  # what has come is not the state
            self._back = None
            self._state.data = self._state.new_empty(0)
            raise
