"""One storage that autograd saves: on the device, on its way, or in the second tier; and what autograd holds of it."""

from __future__ import annotations

import dataclasses
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from oarlock.memory.offload.calls import SaveKey
from oarlock.memory.offload.tiers import Copying, Place, Tier

_num_owners: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)
"""How many hold a storage. A torch without it: only the tensor that was saved first is known to hold it."""


class Handle(Protocol):
    """What autograd holds in place of a saved tensor."""

    def get(self) -> Tensor: ...


def check_version(tensor: Tensor, version: int) -> None:
    """Raises what autograd raises without hooks, which turn its own check off."""
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"{tensor.dtype} {list(tensor.shape)} is at version {tensor._version}; expected version {version} instead"
        )


@dataclasses.dataclass(frozen=True)
class View:
    """How a tensor lies in its storage."""

    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int

    @staticmethod
    def of(tensor: Tensor) -> View:
        return View(tensor.dtype, tensor.shape, tensor.stride(), int(tensor.storage_offset()))

    def on(self, storage: torch.UntypedStorage) -> Tensor:
        tensor = torch.empty(0, dtype=self.dtype, device=storage.device)
        return tensor.set_(storage, self.offset, self.shape, self.stride)  # type: ignore[call-overload]


class Held:
    """A tensor that stays as it is: a weight, a small one, another device's, or of a kind that has no plain storage."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._version = tensor.detach(), tensor._version

    def get(self) -> Tensor:
        check_version(self._tensor, self._version)
        return self._tensor.detach()


class Wrapped:
    """A tensor subclass made of inner tensors, such as a DTensor."""

    def __init__(self, tensor: Any, pack: Callable[[Tensor], Handle]) -> None:
        names, self._context = tensor.__tensor_flatten__()
        inner = {name: getattr(tensor, name) for name in names}
        self._inner = {name: pack(value) for name, value in inner.items() if isinstance(value, Tensor)}
        self._others = {name: value for name, value in inner.items() if name not in self._inner}  # such as a mesh
        self._kind, self._shape, self._stride = type(tensor), tensor.shape, tensor.stride()

    def get(self) -> Tensor:
        inner = {name: handle.get() for name, handle in self._inner.items()} | self._others
        return self._kind.__tensor_unflatten__(inner, self._context, self._shape, self._stride)


class Saved:
    """One storage, however many views of it are saved; it lives as long as one of its handles.

    Attributes:
        key: of its first save.
        num_bytes: of the storage.
        stalled: seconds that `get` waited for it.
    """

    _out: Copying | None = None

    def __init__(self, key: SaveKey, tensor: Tensor) -> None:
        self.key = key
        self.device = tensor.device
        self._storage: torch.UntypedStorage | None = tensor.untyped_storage()
        self.num_bytes = self._storage.nbytes()
        self._probe: Tensor | None = tensor.detach()  # shares the version counter
        self.version = tensor._version
        self.original = weakref.ref(self._storage)
        self._tensor = weakref.ref(tensor)
        self._place: Place | None = None
        self._tier: Tier | None = None
        self._back: Copying | None = None
        self._restored: weakref.ref[torch.UntypedStorage] | None = None
        self._num_waiting = 0  # handles that were not asked for yet
        self._torn = False
        self.stalled = 0.0

    # ------------------------------------------------------------------------------------------------ out and back

    @property
    def is_on_device(self) -> bool:
        return self._storage is not None

    @property
    def is_leaving(self) -> bool:
        return self._out is not None and self._storage is not None

    @property
    def may_leave(self) -> bool:
        """Whether its device memory is its own only, and it is not on its way."""
        return self._storage is not None and self._out is None and self._back is None

    @property
    def is_held_elsewhere(self) -> bool:
        """Whether the program, or an operation that runs, has a tensor on this storage too."""
        if self._tensor() is not None:
            return True
        if self._storage is None or _num_owners is None:
            return False
        return _num_owners(self._storage._cdata) > 1 + (self._probe is not None)

    def send(self, tier: Tier) -> None:
        """Begins to copy it out; the device memory is given back by `release`."""
        assert self._storage is not None
        place = tier.take(self.num_bytes)
        with torch.no_grad():
            self._out = tier.write(place, bytes_of(self._storage))
        self._place, self._tier = place, tier

    def release(self) -> float:
        """Gives the device memory back once it is copied; returns the seconds waited.

        Raises:
            OSError, OutOfMemoryError: the copy failed; the storage is where it was, and may be sent again.
        """
        if self._out is None or self._storage is None or self._back is not None:
            return 0.0
        waited = self._sent()
        assert self._probe is not None
        self._torn = self._probe._version != self.version
        self._storage = self._probe = None
        return waited

    def _sent(self) -> float:
        """Waits for the copy out. One that failed is forgotten: what its place holds is not the storage."""
        assert self._out is not None
        try:
            return _wait(self._out)
        except BaseException:
            self._out = self._place = self._tier = None
            raise

    def fetch(self) -> None:
        """Begins to copy it back, if it is away."""
        if self._torn or self._resident() is not None:
            return
        assert self._tier is not None
        assert self._place is not None
        with torch.no_grad():
            bytes_N = torch.empty(self.num_bytes, dtype=torch.uint8, device=self.device)
            self._back = self._tier.read(self._place, bytes_N)
        self._storage = bytes_N.untyped_storage()
        self._restored = weakref.ref(self._storage)

    def _resident(self) -> torch.UntypedStorage | None:
        if self._storage is not None:
            return self._storage
        if self._restored is not None and (storage := self._restored()) is not None:
            return storage
        tensor = self._tensor()  # the program itself may still hold it
        if tensor is not None and tensor._version == self.version:
            return self.original()
        return None

    # ------------------------------------------------------------------------------------------------------- views

    def expect(self) -> None:
        """One more handle will ask."""
        self._num_waiting += 1

    def storage(self, *, first_time: bool) -> torch.UntypedStorage:
        """Its storage on the device; the last handle that asks for the first time leaves only the tier's copy."""
        if self._probe is not None:
            check_version(self._probe, self.version)
        if self._torn:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation "
                f"while it was copied out: {self.num_bytes} bytes saved in {self.key[1]!r}"
            )
        self.fetch()
        storage = self._resident()
        assert storage is not None
        if self._back is not None:
            self.stalled += _wait(self._back)
        self._num_waiting -= first_time
        if self._num_waiting == 0 and self._out is not None:
            if self._out.is_done():
                self._sent()
                self._storage = self._probe = self._back = None
            elif (
                self._back is None
            ):  # needed before it was copied: a copy in the queue would hold it behind its last use
                self._out.cancel()
                self._out = self._place = self._tier = None
        return storage

    def __del__(self) -> None:
        if self._out is not None:
            self._out.cancel(wait=False)


class SavedView:
    """What autograd holds of a `Saved`."""

    __slots__ = ("__weakref__", "_asked", "saved", "view")

    def __init__(self, saved: Saved, view: View) -> None:
        self.saved, self.view = saved, view
        self._asked = False

    def get(self) -> Tensor:
        first_time, self._asked = not self._asked, True
        return self.view.on(self.saved.storage(first_time=first_time))


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is fully described by its storage, dtype, shape, strides and offset."""
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and tensor.device.type != "meta"
    )


def bytes_of(storage: torch.UntypedStorage) -> Tensor:
    """uint8 [N]: all of a storage."""
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage, 0, (storage.nbytes(),), (1,))  # type: ignore[call-overload]


def _wait(copying: Copying) -> float:
    if copying.is_done():
        copying.wait()
        return 0.0
    began = time.perf_counter()
    copying.wait()
    return time.perf_counter() - began
