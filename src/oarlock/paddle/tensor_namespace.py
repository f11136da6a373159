"""`paddle.tensor` is a function, and a namespace too: `paddle.tensor.add`, `paddle.tensor.math.add`."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from oarlock.paddle.declare import exports

# The files that Paddle keeps its functions in. Here each of the names knows all of them.
FILES = "attribute creation linalg logic manipulation math ops random search stat"


def furnish(tensor: Callable[..., Any]) -> None:
    """Give the function `tensor` the functions of the namespace as attributes."""
    names: dict[str, Any] = {}
    for where in ("paddle.linalg", "paddle", "paddle.Tensor", "paddle.tensor", "paddle.tensor.search"):
        names.update(exports(where))
    namespace = SimpleNamespace(**names)
    vars(tensor).update(names, **dict.fromkeys(FILES.split(), namespace))
