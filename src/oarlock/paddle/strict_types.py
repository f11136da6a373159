"""Paddle's types beside the tensor, for strict mode: a list-like shape, a size that can be called, dtype objects."""

import enum
import functools
import math
from typing import Any

import torch


class Size(list[int]):
    """A shape as Paddle has it: a list."""

    def numel(self) -> int:
        """The number of elements of a tensor of this shape."""
        return math.prod(self)

    def __add__(self, other: Any) -> "Size":
        return Size([*self, *other])

    def __radd__(self, other: Any) -> "Size":
        return Size([*other, *self])

    def __mul__(self, count: Any) -> "Size":
        return Size(list(self) * count)

    __rmul__ = __mul__

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return Size(found) if isinstance(index, slice) else found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (list, tuple)) and list(self) == list(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"paddle.Size({list(self)})"


class IntSize(int):
    """The number of elements; called, the shape, or the size of one dimension."""

    shape: Size

    @classmethod
    def of(cls, shape: Size) -> "IntSize":
        """The size of a tensor of a shape."""
        made = cls(math.prod(shape))
        made.shape = shape
        return made

    def __call__(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]


class StrictDType:
    """A dtype that prints as Paddle's; equal to torch's and to no string."""

    def __init__(self, plain: torch.dtype) -> None:
        self.plain = plain

    @classmethod
    @functools.cache
    def of(cls, plain: torch.dtype) -> "StrictDType":
        """The one object of a dtype."""
        return cls(plain)

    def __eq__(self, other: object) -> bool:
        return self.plain is (other.plain if isinstance(other, StrictDType) else other)

    def __hash__(self) -> int:
        return hash(self.plain)

    def __repr__(self) -> str:
        return str(self.plain).replace("torch.", "paddle.")

    def __getattr__(self, name: str) -> Any:
        if name == "plain":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.plain, name)


class VarType(enum.IntEnum):
    """The kind of a variable, what `x.type` is."""

    DENSE_TENSOR = 7
