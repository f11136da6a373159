"""Records the allocations of any torch program, also of one that is far too large for this machine.

Tensors on `meta` have sizes and lifetimes but no memory, so a training step of a GPU's size is recorded on a laptop in
seconds. What a kernel takes and gives back inside one operation, and what libraries take for themselves, is not seen.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from oarlock.memory.trace import ALLOCATE, FREE, USE, Trace


class TraceRecorder(TorchDispatchMode):
    """While entered, notes every new storage of one device type that an operation returns, and when it dies.

    Args:
        device: type of the device, e.g. "meta" or "cpu".

    .. code-block:: python

        with TraceRecorder("meta") as recorder, torch.device("meta"):
            with recorder.label("forward"):
                loss = model(tokens)
        recorder.trace().save("step.npz")

    A storage is noted once, whatever its views; one that the program resizes keeps its first size. Frees are noted
    until :meth:`trace` is called, also after the recorder was left.
    """

    def __init__(self, device: str = "meta") -> None:
        super().__init__()
        self.device = device
        self._events: list[tuple[int, int, int, int, int]] = []
        self._num_allocations = 0
        self._storages: dict[int, tuple[weakref.ref[torch.UntypedStorage], int, int]] = {}
        self._stream = 0
        self._labels = {"": 0}
        self._label = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in (result,) if isinstance(result, Tensor) else tree_iter(result):
            if isinstance(leaf, Tensor) and leaf.device.type == self.device and leaf.layout == torch.strided:
                self._note(leaf.untyped_storage())
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata  # the same for every Python object of one storage
        num_bytes = storage.nbytes()
        if num_bytes == 0 or key in self._storages:
            return
        number, stream = self._num_allocations, self._stream
        self._num_allocations += 1
        self._events.append((ALLOCATE, number, num_bytes, stream, self._label))

        def died(_: object) -> None:
            self._storages.pop(key, None)
            self._events.append((FREE, number, 0, stream, self._label))

        self._storages[key] = (weakref.ref(storage, died), number, stream)

    @contextlib.contextmanager
    def stream(self, stream: int) -> Iterator[None]:
        """Allocations inside happen on this stream."""
        before, self._stream = self._stream, stream
        try:
            yield
        finally:
            self._stream = before

    @contextlib.contextmanager
    def label(self, name: str) -> Iterator[None]:
        """Events inside carry this name."""
        before, self._label = self._label, self._labels.setdefault(name, len(self._labels))
        try:
            yield
        finally:
            self._label = before

    def use(self, tensor: Tensor, stream: int) -> None:
        """Another stream uses the tensor from here on, as ``tensor.record_stream`` says on a device.

        Raises:
            ValueError: the tensor was not made while the recorder was entered, or is on another device.
        """
        known = self._storages.get(tensor.untyped_storage()._cdata)
        if known is None:
            raise ValueError(f"this recorder has not seen the tensor of shape {list(tensor.shape)} being made")
        if known[2] != stream:
            self._events.append((USE, known[1], 0, stream, self._label))

    def trace(self) -> Trace:
        """What has happened so far; what lives now is not freed in it."""
        columns = np.array(self._events, np.int64).reshape(-1, 5).T
        action, number, size, stream, label = columns
        return Trace(
            action.astype(np.uint8),
            number.astype(np.uint32),
            size.copy(),
            stream.astype(np.uint32),
            label.astype(np.uint16),
            tuple(self._labels),
        )
