"""`PyLayer`: an operation with a backward of one's own.

    class Square(PyLayer):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensor()
            return 2 * x * grad

`backward` gets a gradient for each tensor that forward returned, and returns one for each *tensor* among forward's
arguments, in their order (torch's Functions: one for each argument).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten


class PyLayerContext:
    """What forward leaves for backward; any attribute may be set on it."""

    _tensors: Any = ()
    _without_gradient: Any = ()
    _materialize = True
    _consistent = True

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors for backward; once, in forward."""
        self._tensors = tensors

    def saved_tensor(self) -> Any:
        """What was kept."""
        return self._tensors

    @property
    def saved_tensors(self) -> Any:
        """The same, in torch's spelling."""
        return self._tensors

    def mark_not_inplace(self, *tensors: Any) -> None:
        """Say that results which are inputs are to be new tensors; they are in any case."""

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Say that results have no gradient."""
        self._without_gradient = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether backward gets zeros (or None) for results without a gradient."""
        self._materialize = value

    def set_grad_in_dtype_consistent(self, flag: bool) -> None:
        """Whether backward gets gradients in the dtype of the results (the default), or uncast.

        A consumer whose backward computes in float32 then hands float32 on to a float16 result. Gradients of several
        consumers are summed as they come.
        """
        self._consistent = flag


class PyLayer:
    """Base of own operations; see the module."""

    @staticmethod
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        """What the operation computes."""
        raise NotImplementedError("You must implement the forward function for PyLayer.")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Its gradients."""
        raise NotImplementedError("You must implement the backward function for PyLayer.")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run the operation."""
        is_flat = not kwargs and _is_flat(args)
        given, form = (args, None) if is_flat else tree_flatten((args, kwargs))
        spec, *leaves = _Bridge.apply(cls, form, *given)
        return leaves[0] if spec is _ONE else tuple(leaves) if spec is None else tree_unflatten(leaves, spec)


_ONE = object()  # the form of a result that is one tensor; None: a tuple of them


def _is_flat(values: Sequence[Any]) -> bool:
    """Whether no value holds others: the common case, which needs no trees."""
    return not any(isinstance(value, (list, tuple, dict)) for value in values)


class _Bridge(torch.autograd.Function):
    """One torch Function for all PyLayers: arguments come flat, so that each tensor is one of its own."""

    @staticmethod
    def forward(ctx: Any, layer: type[PyLayer], spec: Any, *leaves: Any) -> Any:
        own = PyLayerContext()
        args, kwargs = (leaves, {}) if spec is None else tree_unflatten(list(leaves), spec)
        result = layer.forward(own, *args, **kwargs)
        if isinstance(result, Tensor):
            flat, out_spec = [result], _ONE
        elif type(result) is tuple and _is_flat(result):
            flat, out_spec = list(result), None
        else:
            flat, out_spec = tree_flatten(result)
        # A result that is an argument becomes a tensor of its own, as everywhere in Paddle.
        given = {id(leaf) for leaf in leaves if isinstance(leaf, Tensor)}
        kept = own._tensors
        made = [each.view_as(each) if isinstance(each, Tensor) and id(each) in given else each for each in flat]
        if all(isinstance(each, Tensor) for each in kept):
            ctx.save_for_backward(*kept)
            own._tensors = None
        else:
            saved = _tensors(kept)
            position = {id(tensor): i for i, tensor in enumerate(saved)}
            ctx.save_for_backward(*saved)
            own._tensors = _replaced(kept, lambda tensor: _Kept(position[id(tensor)]))
        if own._without_gradient:
            without = {id(each) for each in own._without_gradient}
            ctx.mark_non_differentiable(
                *(new for old, new in zip(flat, made, strict=True) if isinstance(new, Tensor) and id(old) in without)
            )
        if not own._materialize:
            ctx.set_materialize_grads(False)
        if not own._consistent:
            for each in made:
                if isinstance(each, Tensor) and each.is_floating_point():
                    each.grad_dtype = None  # torch's engine then hands gradients on uncast
        ctx.own, ctx.layer = own, layer
        ctx.is_result = [False, *(isinstance(each, Tensor) for each in made)]
        ctx.shapes = [leaf.shape if isinstance(leaf, Tensor) else None for leaf in leaves]
        return (out_spec, *made)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        own: PyLayerContext = ctx.own
        kept, saved = own._tensors, ctx.saved_tensors
        own._tensors = saved if kept is None else _restored(kept, saved)
        try:
            found = ctx.layer.backward(own, *[g for g, wanted in zip(grads, ctx.is_result, strict=True) if wanted])
        finally:
            own._tensors = kept
        given = list(found) if isinstance(found, (tuple, list)) else [found]
        count = len(ctx.shapes) - ctx.shapes.count(None)
        if len(given) != count:
            raise ValueError(
                f"{ctx.layer.__name__}.backward returned {len(given)} gradients for {count} tensors of forward; "
                "return one for each tensor, None where there is none"
            )
        gradients = iter(given)
        found = [None if shape is None else next(gradients) for shape in ctx.shapes]
        return (None, None, *map(_fitted, found, ctx.shapes))


def _fitted(gradient: Any, shape: torch.Size | None) -> Any:
    """A gradient in its input's shape where it has as many elements, such as [] for [1]."""
    if gradient is None or shape is None or gradient.shape == shape or gradient.numel() != shape.numel():
        return gradient
    return gradient.reshape(shape)


class _Kept:
    def __init__(self, number: int) -> None:
        self.number = number


def _tensors(kept: Sequence[Any]) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(kept)[0] if isinstance(leaf, Tensor)]


def _replaced(kept: Any, change: Any) -> Any:
    leaves, spec = tree_flatten(kept)
    return tree_unflatten([change(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec)


def _restored(kept: Any, saved: Sequence[Tensor]) -> Any:
    leaves, spec = tree_flatten(kept)
    return tree_unflatten([saved[leaf.number] if isinstance(leaf, _Kept) else leaf for leaf in leaves], spec)
