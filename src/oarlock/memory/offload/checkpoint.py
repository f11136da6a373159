"""Activation checkpointing without re-entering autograd, in which what is saved may also be kept or sent elsewhere.

    out = checkpoint(block, x)                                    # saves inputs, computes the rest again
    out = checkpoint(block, x, hold=lambda t: Held(t) if t.shape[-1] > 4096 else None)

torch's own hides all that is saved inside from outer hooks; here `hold` sees it first.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_unflatten

from oarlock.memory.offload.saved import Handle, View


class _Stop(BaseException):
    """Everything that is wanted was computed."""


class _Inputs(torch.autograd.Function):
    """Saves the inputs as any operation would, so that outer hooks see them and versions are checked."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise AssertionError("nothing depends on it")


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    hold: Callable[[Tensor], Handle | None] | None = None,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """function(*args, **kwargs), of which autograd saves the input tensors only; the rest is computed again.

    It is computed once per backward pass, only as far as the last tensor that is wanted, with the random numbers and
    the autocast of the first time. Calls may nest, in each other and in torch's own checkpoints and hooks.

    Args:
        function: gives the same saved tensors each time.
        args, kwargs: tensors in nested tuples, lists and dicts of them are its inputs.
        hold: called with each tensor that autograd saves inside; what it returns is held in its place, None means that
            it is computed again.
        preserve_rng_state: computes again with the random numbers of the first time.

    Returns:
        what the function returns.

    Raises:
        RuntimeError: in the backward pass, if other tensors were saved the second time.
    """
    return run(function, args, kwargs, hold=hold, preserve_rng_state=preserve_rng_state)


def run(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    hold: Callable[[Tensor], Handle | None] | None = None,
    needed: Callable[[int], None] = lambda number: None,
    preserve_rng_state: bool = True,
    recomputing: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Any:
    """`checkpoint` with more to say: `needed` is called before a tensor that is computed again is given, with its
    number among all that are saved inside; `recomputing` is a context for computing again."""
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    leaves, spec = tree_flatten((args, kwargs))
    region = _Region(function, leaves, spec, hold, needed, recomputing, preserve_rng_state)
    packing = [region]  # autograd keeps the hook with each saved tensor; only what is computed again needs the inputs
    del region
    with saved_tensors_hooks(lambda tensor: packing[0].pack(tensor), lambda handle: handle.get()):
        try:
            return function(*args, **kwargs)
        finally:
            packing.clear()


class _Region:
    def __init__(
        self,
        function: Callable[..., Any],
        leaves: list[Any],
        spec: Any,
        hold: Callable[[Tensor], Handle | None] | None,
        needed: Callable[[int], None],
        recomputing: Callable[[], AbstractContextManager[None]],
        preserve_rng_state: bool,
    ) -> None:
        self._function, self._spec, self._hold = function, spec, hold
        self._needed, self._recomputing = needed, recomputing
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self._others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self._require_grad = [tensor.requires_grad for tensor in tensors]
        anchor = torch.empty(0, requires_grad=True)
        self._inputs = _Inputs.apply(anchor, *tensors)
        kinds = {tensor.device.type for tensor in tensors} | {"cpu"}
        self._autocast = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), torch.is_autocast_cache_enabled())
            for kind in sorted(kinds - {"meta"})
        ]
        self._devices = sorted({tensor.device for tensor in tensors if tensor.device.type == "cuda"}, key=str)
        self._rng = (
            (torch.get_rng_state(), [torch.cuda.get_rng_state(device) for device in self._devices])
            if preserve_rng_state
            else None
        )
        self._num_saves = 0
        self._recomputed: list[weakref.ref[Recomputed]] = []
        self._values: dict[int, Tensor] = {}

    def pack(self, tensor: Tensor) -> Handle:
        number = self._num_saves
        self._num_saves += 1
        held = self._hold(tensor) if self._hold is not None else None
        if held is not None:
            return held
        result = Recomputed(self, number, tensor)
        self._recomputed.append(weakref.ref(result))
        return result

    def value(self, number: int) -> Tensor:
        self._needed(number)
        if number not in self._values:
            self._recompute()
        return self._values.pop(number)

    def _recompute(self) -> None:
        alive = [each for ref in self._recomputed if (each := ref()) is not None]
        wanted = {each.number: each for each in alive if each.number not in self._values}
        last, number = max(wanted), 0

        def pack(tensor: Tensor) -> int:
            nonlocal number
            if number in wanted:
                wanted[number].check(tensor)
                self._values[number] = tensor.detach()
                if number == last:
                    raise _Stop
            number += 1
            return number

        def unpack(_: int) -> Tensor:
            raise RuntimeError("a function that takes gradients itself cannot be computed again in a checkpoint")

        inputs = self._inputs.grad_fn.saved_tensors  # type: ignore[union-attr]
        leaves = list(self._others)
        for place, tensor, requires_grad in zip(self._places, inputs, self._require_grad, strict=True):
            leaves[place] = tensor.detach().requires_grad_(requires_grad)
        del inputs
        args, kwargs = tree_unflatten(leaves, self._spec)
        del leaves
        with ExitStack() as stack:
            stack.enter_context(self._recomputing())
            if self._rng is not None:
                stack.enter_context(torch.random.fork_rng(devices=self._devices))
                torch.set_rng_state(self._rng[0])
                for device, state in zip(self._devices, self._rng[1], strict=True):
                    torch.cuda.set_rng_state(state, device)
            for kind, dtype, enabled, cached in self._autocast:
                stack.enter_context(torch.autocast(kind, dtype, enabled=enabled, cache_enabled=cached))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(saved_tensors_hooks(pack, unpack))
            try:
                self._function(*args, **kwargs)
            except _Stop:
                return
        raise RuntimeError(
            f"a checkpointed function saved {self._num_saves} tensors the first time and {number} the second time; it "
            "must do the same both times"
        )


class Recomputed:
    """What autograd holds of a tensor that is computed again."""

    __slots__ = ("__weakref__", "_region", "_storage", "_view", "number")

    def __init__(self, region: _Region, number: int, tensor: Tensor) -> None:
        self._region, self.number = region, number
        self._view = (tensor.dtype, tensor.shape, tensor.device)
        self._storage: tuple[weakref.ref[torch.UntypedStorage], View] | None = None

    def get(self) -> Tensor:
        if self._storage is not None and (storage := self._storage[0]()) is not None:
            return self._storage[1].on(storage)  # asked for twice, as by double backward
        value = self._region.value(self.number)
        if type(value) is Tensor and value.layout == torch.strided:
            self._storage = weakref.ref(value.untyped_storage()), View.of(value)
        return value

    def check(self, tensor: Tensor) -> None:
        """Whether the second time gives what the first time gave, as far as the shape tells."""
        found = (tensor.dtype, tensor.shape, tensor.device)
        if found != self._view:
            raise RuntimeError(
                f"a checkpointed function saved {_described(*self._view)} as its tensor {self.number} the first time "
                f"and {_described(*found)} the second time; it must do the same both times"
            )


def _described(dtype: torch.dtype, shape: torch.Size, device: torch.device) -> str:
    return f"{dtype} {list(shape)} on {device}"
