"""Eager mode, which is always on here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.tensors.conversion import to_tensor

no_grad = torch.no_grad


@contextlib.contextmanager
def guard(place: Any = None) -> Iterator[None]:
    """A block in eager mode, as all code is."""
    yield


def to_variable(value: Any, name: str | None = None, zero_copy: bool | None = None, dtype: Any = None) -> Tensor:
    """`paddle.to_tensor` under its old name."""
    return to_tensor(value, dtype)
