"""Python's operators in Paddle's meaning: `paddle.Tensor.__floordiv__(x, 2)`, and `x // 2` in strict mode."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import REGISTRY
from oarlock.paddle.getitem import getitem, setitem

# Operator -> the function that means it. Those with a torch operator of the same meaning ask torch first: it is fast.
FUNCTIONS = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "div": "divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "matmul": "matmul",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less_than",
    "le": "less_equal",
    "gt": "greater_than",
    "ge": "greater_equal",
}
COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}
OWN = {"floordiv", "rfloordiv", "rtruediv", "rdiv", "rmod", "rmatmul"}  # torch's differ in dtype or are absent


INDEXING: dict[str, Callable[..., Any]] = {"__getitem__": getitem, "__setitem__": setitem}


def operators() -> dict[str, Callable[[Any, Any], Any]]:
    """The two-sided operators by their special name, `__add__` and so on."""
    found: dict[str, Callable[[Any, Any], Any]] = {}
    for word, name in FUNCTIONS.items():
        function = REGISTRY[f"paddle.{name}"].function
        found[f"__{word}__"] = _operator(word, function, False)
        if word not in COMPARISONS:
            found[f"__r{word}__"] = _operator(f"r{word}", function, True)
    return found


def _operator(word: str, function: Callable[..., Any], swapped: bool) -> Callable[[Any, Any], Any]:
    special = f"__{word}__"
    native: Any = None if word in OWN else getattr(Tensor, special, None)

    def operator(x: Tensor, y: Any) -> Any:
        if native is not None:
            try:
                made = native(x, y)
            except (TypeError, RuntimeError):
                made = NotImplemented
            if made is not NotImplemented:
                return made
        if not isinstance(y, Tensor):
            y = as_operand(x, y)
        if isinstance(y, Tensor) and (x.dtype == torch.bool) != (y.dtype == torch.bool):
            kind = torch.result_type(x, y)  # bool counts as a number beside one
            x, y = x.to(kind), y.to(kind)
        return function(y, x) if swapped else function(x, y)

    operator.__name__ = operator.__qualname__ = special
    operator.__doc__ = f"`{function.__name__}` of two operands{', the second one first' if swapped else ''}."
    return operator


def as_operand(x: Tensor, y: Any) -> Any:
    """A Python number beside `x` as a 0-D tensor: of the dtype of `x`, or the default one for a fraction."""
    if isinstance(y, (bool, int)):
        kind = torch.int64 if x.dtype == torch.bool and not isinstance(y, bool) else x.dtype
        return torch.tensor(y, dtype=kind, device=x.device)
    if isinstance(y, float):
        real = x.is_floating_point() or x.is_complex()
        return torch.tensor(y, dtype=x.dtype if real else torch.get_default_dtype(), device=x.device)
    return y
