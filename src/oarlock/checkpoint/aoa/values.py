"""Value operations: what happens to elements on their way. Everything else in a program only moves them.

A value operation applies to parameters (arithmetic also to their master copies) unless its statement says `only=optim`
or `only=all`: a bf16 parameter must not turn its fp32 moments into bf16.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from oarlock.checkpoint.dtypes import dtype_name

Scope = Literal["param", "optim", "all"]
"""What the `only=` of a statement may say."""

State = Literal["param", "master", "optim"]
"""A parameter, its master copy in higher precision, or another optimizer state of its shape."""


@dataclass(frozen=True, slots=True)
class Cast:
    """x -> x in another dtype, rounded as Tensor.to rounds."""

    source: torch.dtype
    dtype: torch.dtype
    only: Scope = "param"

    def __call__(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)

    def inverse(self) -> "Cast":
        return Cast(self.dtype, self.source, self.only)

    def __str__(self) -> str:
        return f"cast from {dtype_name(self.source)} to {dtype_name(self.dtype)}"


@dataclass(frozen=True, slots=True)
class Add:
    """x -> x + value, in the dtype of x."""

    value: float
    only: Scope = "param"

    def __call__(self, x: Tensor) -> Tensor:
        return (x + self.value).to(x.dtype)

    def inverse(self) -> "Add":
        return Add(-self.value, self.only)

    def __str__(self) -> str:
        return f"plus {self.value}" if self.value >= 0 else f"minus {-self.value}"


@dataclass(frozen=True, slots=True)
class Multiply:
    """x -> x * value, in the dtype of x."""

    value: float
    only: Scope = "param"

    def __call__(self, x: Tensor) -> Tensor:
        return (x * self.value).to(x.dtype)

    def inverse(self) -> "Divide":
        if self.value == 0:
            raise ValueError("a multiplication by 0 cannot be reversed")
        return Divide(self.value, self.only)

    def __str__(self) -> str:
        return f"times {self.value}"


@dataclass(frozen=True, slots=True)
class Divide:
    """x -> x / value, in the dtype of x: what Multiply is undone by."""

    value: float
    only: Scope = "param"

    def __call__(self, x: Tensor) -> Tensor:
        return (x / self.value).to(x.dtype)

    def inverse(self) -> Multiply:
        return Multiply(self.value, self.only)

    def __str__(self) -> str:
        return f"divided by {self.value}"


ValueOp = Cast | Add | Multiply | Divide


def applies(op: ValueOp, state: State) -> bool:
    """Whether an operation concerns a state. A master copy follows its parameter's values, but not its dtype."""
    if state == "master":
        return op.only == "all" or (op.only == "param" and not isinstance(op, Cast))
    return op.only in (state, "all")


@cache
def is_possible(op: ValueOp, dtype: torch.dtype) -> bool:
    """Whether torch can do it with values of this dtype; so that no load finds out half-way."""
    if dtype == torch.bool and not isinstance(op, Cast):
        return False
    try:
        op(torch.empty(1, dtype=dtype, device="cpu"))
    except (RuntimeError, TypeError):
        return False
    return True
