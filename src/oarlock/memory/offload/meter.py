"""Counts the bytes of a device that storages take, in the order in which operations make and drop them; keeps a cap.

A storage counts from the operation that makes it to the death of its last view. What a kernel takes and gives back
inside one operation does not count.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from oarlock.memory.amounts import amount
from oarlock.memory.pool import OutOfMemoryError


class _Ref(weakref.ref[torch.UntypedStorage]):
    key: int = 0
    num_bytes: int = 0
    number: int = 0


class Meter(TorchDispatchMode):
    """While entered, counts the storages of one device that this thread's operations make, also in backward passes.

    Args:
        device: whose memory is counted; other devices are not looked at.
        cap: bytes that may live at once; None for no cap.
        note: called with (number of the storage, +bytes or -bytes) at each begin and end of a storage.

    Attributes:
        live: bytes that live now; peak: at most since the last `reset_peak`.
        pressure: called where the cap is passed, with the bytes that are too many, as long as it returns True.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        *,
        cap: int | None = None,
        note: Callable[[int, int], None] | None = None,
    ) -> None:
        super().__init__()
        self.device = torch.device(device)
        self.cap = cap
        self.live = self.peak = 0
        self.pressure: Callable[[int], bool] | None = None
        self._note = note
        self._refs: dict[int, _Ref] = {}
        self._effects: dict[object, str] = {}
        self._num_storages = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        effect = self._effects.get(function)
        if effect is None:
            effect = self._effects[function] = _effect(function)
        if effect:
            for leaf in (result,) if isinstance(result, Tensor) else tree_iter(result):
                if isinstance(leaf, Tensor) and (effect == "makes" or leaf.untyped_storage()._cdata in self._refs):
                    self.count(leaf)
        return result

    def count(self, tensor: Tensor) -> None:
        """Counts the storage of a tensor from now on, if it is not counted yet.

        Raises:
            OutOfMemoryError: it does not fit under the cap.
        """
        if tensor.device != self.device or tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        num_bytes, known = storage.nbytes(), self._refs.get(storage._cdata)
        if known is not None:
            if known.num_bytes == num_bytes:
                return
            self._ended(known)  # resized
        if num_bytes == 0:
            return
        ref = _Ref(storage, self._ended)
        ref.key, ref.num_bytes, ref.number = storage._cdata, num_bytes, self._num_storages
        self._num_storages += 1
        self._refs[ref.key] = ref
        self.live += num_bytes
        if self._note is not None:
            self._note(ref.number, num_bytes)
        if self.cap is not None and self.live > self.cap:
            self._make_room(num_bytes)
        self.peak = max(self.peak, self.live)

    def watch(self, model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
        """Counts parameters, buffers, gradients and states that are there already."""
        for tensor in (*model.parameters(), *model.buffers()):
            self.count(tensor)
            if tensor.grad is not None:
                self.count(tensor.grad)
        for optimizer in optimizers:
            for state in optimizer.state.values():
                for value in state.values():
                    if isinstance(value, Tensor):
                        self.count(value)

    def number(self, storage: torch.UntypedStorage) -> int | None:
        """The number of a storage that lives and is counted."""
        ref = self._refs.get(storage._cdata)
        return None if ref is None else ref.number

    def reset_peak(self) -> None:
        """The peak begins anew."""
        self.peak = self.live

    def _make_room(self, num_bytes: int) -> None:
        assert self.cap is not None
        while self.live > self.cap:
            try:
                if self.pressure is not None and self.pressure(self.live - self.cap):
                    continue
            except (OSError, OutOfMemoryError) as error:
                raise OutOfMemoryError(f"{self._too_much(num_bytes)}, and {error}") from error
            raise OutOfMemoryError(self._too_much(num_bytes))

    def _too_much(self, num_bytes: int) -> str:
        return (
            f"{amount(num_bytes)} more on {self.device} make {amount(self.live)} ({self.live:,} bytes), beyond the cap "
            f"of {amount(self.cap or 0)} ({self.cap:,} bytes)"
        )

    def _ended(self, ref: weakref.ref[torch.UntypedStorage]) -> None:
        assert isinstance(ref, _Ref)
        if self._refs.get(ref.key) is ref:
            del self._refs[ref.key]
            self.live -= ref.num_bytes
            if self._note is not None:
                self._note(ref.number, -ref.num_bytes)


def _effect(function: Any) -> str:
    """ "makes" where it may return a storage that its arguments did not have, "resizes" where it writes to one."""
    schema = getattr(function, "_schema", None)
    if schema is None or any(result.alias_info is None for result in schema.returns):
        return "makes"
    return "resizes" if any(result.alias_info.is_write for result in schema.returns) else ""
