"""`InputSpec`: shape, dtype and name of an input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from oarlock.paddle.dtypes import as_dtype, dtype_name


class InputSpec:
    """Describes a tensor; sizes that are None or -1 are free."""

    def __init__(
        self, shape: Sequence[int | None], dtype: Any = "float32", name: str | None = None, stop_gradient: bool = False
    ) -> None:
        self.shape = tuple(-1 if size is None else int(size) for size in shape)
        self.dtype = as_dtype(dtype)
        self.name, self.stop_gradient = name, stop_gradient

    @classmethod
    def from_tensor(cls, tensor: Tensor, name: str | None = None) -> Self:
        """Of a tensor."""
        return cls(tensor.shape, tensor.dtype, name or getattr(tensor, "name", None))

    @classmethod
    def from_numpy(cls, ndarray: np.ndarray, name: str | None = None) -> Self:
        """Of an array."""
        return cls(ndarray.shape, ndarray.dtype, name)

    def batch(self, batch_size: int) -> Self:
        """With a dimension in front."""
        self.shape = (int(batch_size), *self.shape)
        return self

    def unbatch(self) -> Self:
        """Without the first dimension."""
        if not self.shape:
            raise ValueError("Not support to unbatch a InputSpec when len(shape) == 0.")
        self.shape = self.shape[1:]
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InputSpec) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype, self.name, self.stop_gradient))

    def __repr__(self) -> str:
        kind = dtype_name(self.dtype) if isinstance(self.dtype, torch.dtype) else self.dtype
        return (
            f"InputSpec(shape={self.shape}, dtype=paddle.{kind}, name={self.name}, stop_gradient={self.stop_gradient})"
        )
