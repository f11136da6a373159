"""Parameters and values of distributions as tensors; methods that run on plain tensors."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oarlock.paddle.strict import adopt, bounded, is_strict

PUBLIC = {"__init__", "__call__"}


def parameters(*values: Any) -> tuple[Tensor, ...]:
    """Numbers, lists, arrays and tensors as fractional tensors of one device.

    A fractional tensor stays itself, so that gradients reach it; an array keeps its fractional dtype; all else takes
    the widest of those dtypes, the default one if there is none.
    """
    found = [torch.from_numpy(v) if isinstance(v, np.ndarray) else v for v in values]
    known = [v for v in found if isinstance(v, Tensor)]
    dtypes = [v.dtype for v in known if v.is_floating_point() or v.is_complex()]
    dtype = functools.reduce(torch.promote_types, dtypes) if dtypes else torch.get_default_dtype()
    device = known[0].device if known else None
    made = []
    for value in found:
        if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
            made.append(value)
        else:
            real = dtype.to_real() if dtype.is_complex else dtype
            kind = real.to_complex() if isinstance(value, complex) else real
            made.append(torch.as_tensor(value, dtype=kind, device=device))
    return tuple(made)


def as_value(value: Any, like: Tensor) -> Tensor:
    """A value whose probability is asked: a fractional tensor as it is, all else in the dtype of a parameter."""
    if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
        return value
    return torch.as_tensor(value, dtype=like.dtype, device=like.device)


def sum_rightmost(x: Tensor, count: int) -> Tensor:
    """`x` summed over its last `count` dimensions."""
    return x.sum(tuple(range(-count, 0))) if count else x


class Plain:
    """A class whose public methods and properties run on plain tensors, in strict mode too."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.__module__.startswith("oarlock."):
            return  # a user's methods keep the user's convention
        for name, attribute in list(vars(cls).items()):
            if name.startswith("_") and name not in PUBLIC:
                continue
            if isinstance(attribute, property) and attribute.fget:
                setattr(cls, name, property(_plainly(attribute.fget), doc=attribute.__doc__))
            elif callable(attribute) and not isinstance(attribute, type):
                setattr(cls, name, _plainly(attribute))


def _plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    strictly = bounded(function)
    begins = function.__name__ == "__init__"

    @functools.wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_strict():
            return function(self, *args, **kwargs)
        made = strictly(self, *args, **kwargs)
        if begins:
            adopt(dict(vars(self)))  # the parameters that were made from numbers
        return made

    return call
