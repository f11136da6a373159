"""`paddle.compat`: torch's meaning of the names on which the two conventions conflict."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from oarlock.paddle.compat import nn
from oarlock.paddle.compat.proxy import (
    disable_torch_proxy,
    enable_torch_proxy,
    extend_torch_proxy_blocked_modules,
    use_torch_proxy_guard,
)
from oarlock.paddle.compat.spelling import torch_spelling

__all__ = [
    "Unfold",
    "disable_torch_proxy",
    "enable_torch_proxy",
    "equal",
    "extend_torch_proxy_blocked_modules",
    "max",
    "median",
    "min",
    "nanmedian",
    "nn",
    "seed",
    "slogdet",
    "softmax",
    "sort",
    "split",
    "unique",
    "use_torch_proxy_guard",
]


@functools.wraps(torch.softmax)
def _softmax(input: Any, dim: int | None = None, dtype: Any = None, *, out: Any = None) -> Any:
    return nn.functional.softmax(input, dim, dtype, out=out)


def _declare(name: str, function: Callable[..., Any], wrong: str) -> Callable[..., Any]:
    return torch_spelling(f"paddle.compat.{name}", function, wrong, f"paddle.{name}")


max = _declare("max", torch.max, "x axis")
min = _declare("min", torch.min, "x axis")
sort = _declare("sort", torch.sort, "x axis")
split = _declare("split", torch.split, "x num_or_sections axis name")
median = _declare("median", torch.median, "x axis")
nanmedian = _declare("nanmedian", torch.nanmedian, "x axis")
unique = _declare("unique", torch.unique, "x axis")
equal = _declare("equal", torch.equal, "x y")
Unfold = nn.Unfold
softmax = torch_spelling("paddle.compat.softmax", _softmax, "x axis name", "paddle.nn.functional.softmax")
slogdet = torch.slogdet
seed = torch.seed
