"""`paddle.Tensor`: the class of every torch tensor, with Paddle's constructor and Paddle's unbound methods.

`isinstance(x, paddle.Tensor)` is true for each torch tensor, `paddle.Tensor([1, 2])` makes one, and
`paddle.Tensor.max(x, 1)` is Paddle's max. Whatever Paddle does not define is torch's.
"""

from typing import Any

import numpy as np
import torch

from oarlock.paddle.dtypes import as_device, as_dtype, as_ints
from oarlock.paddle.operators import INDEXING, operators
from oarlock.paddle.patch import method_functions
from oarlock.paddle.properties import PROPERTIES
from oarlock.paddle.tensors.conversion import to_tensor
from oarlock.paddle.tensors.creation import finish

# What Python itself asks of a class. All other names are those of tensors.
NAMES_OF_CLASSES = """
__name__ __qualname__ __module__ __mro__ mro __bases__ __base__ __dict__ __class__ __flags__ __basicsize__ __itemsize__
__dictoffset__ __weakrefoffset__ __subclasses__ __doc__ __init_subclass__ __instancecheck__ __subclasscheck__
__prepare__ __text_signature__ __annotations__ __new__ __init__ __subclasshook__ __abstractmethods__ __parameters__
__origin__ __args__ __call__ __signature__ __wrapped__ __type_params__
"""
_OF_CLASSES = frozenset(NAMES_OF_CLASSES.split())


def construct(
    data: Any = None,
    *sizes: Any,
    dtype: Any = None,
    device: Any = None,
    place: Any = None,
    value: Any = None,
    stop_gradient: bool | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    persistable: bool = False,
    zero_copy: bool = False,
    name: str | None = None,
    dims: Any = None,
    size: Any = None,
) -> torch.Tensor:
    """What `paddle.Tensor(...)` makes: zeros of sizes, or the values of a sequence, an array or a tensor."""
    data = value if data is None else data
    dims = size if dims is None else dims
    if isinstance(data, (int, np.integer)) and not isinstance(data, bool) and all(isinstance(n, int) for n in sizes):
        data, dims = None, [int(data), *sizes]
    elif isinstance(data, torch.Size):
        data, dims = None, list(data)
    elif sizes:  # the old order: value, place, persistable, zero_copy, name, stop_gradient
        place = sizes[0]
        stop_gradient = sizes[4] if len(sizes) > 4 else stop_gradient
    where = as_device(device if place is None else place)
    if data is None:
        shape = [0] if dims is None else as_ints(dims)
        made = torch.zeros(shape, dtype=as_dtype(dtype) or torch.get_default_dtype(), device=where)
    elif isinstance(data, (list, tuple)):
        made = to_tensor(data, dtype or torch.get_default_dtype(), where)
    elif isinstance(data, (np.ndarray, torch.Tensor)):
        made = to_tensor(data, dtype, where)
    else:
        raise TypeError(f"Tensor() takes sizes, a sequence, an array or a tensor, not {data!r}; see to_tensor()")
    return finish(made, requires_grad or stop_gradient is False, pin_memory)


class _Type(type):
    """Makes the class stand for torch.Tensor, of which torch itself makes every tensor."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> type:
        if not bases:
            return super().__new__(cls, name, bases, namespace, **options)
        bases = tuple(torch.Tensor if isinstance(base, _Type) else base for base in bases)
        return type(torch.Tensor)(name, bases, namespace, **options)

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        return MAKE(*args, **kwargs)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is torch.Tensor  # so that `type(x) == paddle.Tensor`, as a key of a dict too

    def __hash__(cls) -> int:
        return hash(torch.Tensor)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, torch.Tensor)

    def __getattribute__(cls, name: str) -> Any:
        if name in _OF_CLASSES:
            return super().__getattribute__(name)
        if name in PADDLES:
            return PADDLES[name]
        return getattr(torch.Tensor, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        if name in _OF_CLASSES:
            return super().__setattr__(name, value)
        PADDLES.pop(name, None)
        setattr(torch.Tensor, name, value)

    def __delattr__(cls, name: str) -> None:
        delattr(torch.Tensor, name)

    def __dir__(cls) -> list[str]:
        return sorted({*dir(torch.Tensor), *PADDLES})


PADDLES: dict[str, Any] = {**method_functions(), **PROPERTIES, **INDEXING, **operators()}
MAKE = construct


class Tensor(metaclass=_Type):
    """A tensor. `Tensor(2, 3)` is zeros, `Tensor([1, 2])` float32; arrays and tensors keep their dtype.

    Every tensor here is a torch.Tensor: this class makes them and names Paddle's methods.
    """
