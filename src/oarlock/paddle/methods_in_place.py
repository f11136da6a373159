"""What only Paddle's tensors have and writes into them: values, shape, memory and gradient."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from oarlock.paddle.declare import api
from oarlock.paddle.dtypes import as_ints, as_number
from oarlock.paddle.methods import AT


@api(at=AT, out=False)
def set_value(x: Tensor, value: Any) -> None:
    """Copy a tensor or an array of the same shape into `x`, outside of the gradient's record."""
    made = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    if made.shape != x.shape:
        raise ValueError(f"set_value() got the shape {list(made.shape)} for a tensor of shape {list(x.shape)}")
    with torch.no_grad():
        x.copy_(made)


@api("clear_grad", at=AT, out=False)
def clear_gradient(x: Tensor, set_to_zero: bool = True) -> None:
    """Fill the gradient with zeros, in place; or forget it."""
    if x.grad is not None:
        with torch.no_grad():
            x.grad = x.grad.zero_() if set_to_zero else None


@api(at=AT, out=False)
def fill_diagonal_tensor_(x: Tensor, y: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Put `y` on a diagonal of `x`."""
    return x.copy_(torch.diagonal_scatter(x, y, offset, dim1, dim2))


@api(at=AT, out=False)
def fill_(x: Tensor, value: Any) -> Tensor:
    """Fill with one value."""
    return x.fill_(as_number(value))


@api(at=AT, out=False)
def zero_(x: Tensor) -> Tensor:
    """Fill with zeros."""
    return x.zero_()


@api(at=AT, out=False)
def fill_diagonal_(x: Tensor, value: Any, offset: int = 0, wrap: bool = False) -> Tensor:
    """Fill a diagonal. Of a tall matrix, `wrap` starts it again below; of equal dimensions, all indices are equal.

    `offset` moves it within its rows: places that would lie in another row stay as they are.
    """
    if offset == 0:
        return x.fill_diagonal_(as_number(value), wrap)
    columns = x.shape[1]
    step = sum(torch.empty(x.shape, device="meta").stride())
    stop = x.numel() if wrap or x.ndim > 2 else min(x.numel(), columns * columns)
    places = [i + offset for i in range(0, stop, step) if 0 <= i % columns + offset < columns]
    indices = torch.unravel_index(torch.tensor(places, dtype=torch.int64, device=x.device), x.shape)
    return x.index_put_(indices, torch.tensor(as_number(value), device=x.device).to(x.dtype))


@api(at=AT, out=False)
def random_(x: Tensor, from_: int = 0, to: int | None = None, *, generator: Any = None) -> Tensor:
    """Fill with integers, uniform in [from_, to)."""
    if to is None:
        return x.random_(generator=generator) if from_ == 0 else x.random_(0, from_, generator=generator)
    return x.random_(from_, to, generator=generator)


@api(at=AT, out=False)
def resize_(x: Tensor, shape: Any, fill_zero: bool = False) -> Tensor:
    """Change the shape in place; elements beyond the old ones are undefined, or zero with `fill_zero`."""
    old = x.numel()
    x.resize_(as_ints(shape))
    if fill_zero and x.numel() > old:
        with torch.no_grad():
            x.view(-1)[old:] = 0
    return x


@api(at=AT, out=False)
def set_(x: Tensor, source: Tensor | None = None, shape: Any = None, stride: Any = None, offset: int = 0) -> Tensor:
    """Make `x` a window into the memory of `source`; `offset` counts bytes."""
    if source is None:
        return x.set_(torch.empty(0, dtype=x.dtype, device=x.device))  # type: ignore[arg-type]
    if shape is None:
        return x.set_(source)  # type: ignore[arg-type]
    sizes = as_ints(shape)
    steps = torch.empty(sizes, device="meta").stride() if stride is None else as_ints(stride)
    return x.set_(source.untyped_storage(), offset // x.element_size(), sizes, steps)  # type: ignore[call-overload]


@api(at=AT, out=False, x="", other="")
def copy_(x: Tensor, other: Tensor, blocking: bool = True) -> Tensor:
    """Copy another tensor into `x`, which takes its shape."""
    if x.shape != other.shape:
        x.resize_(other.shape)
    return x.copy_(other, non_blocking=not blocking)


@api(at=AT, out=False)
def set_tensor(x: Tensor, tensor: Tensor) -> None:
    """Let `x` share the memory of another tensor."""
    x.data = tensor.detach()


@api(at=AT, out=False)
def reconstruct_from_(x: Tensor, other: Tensor) -> None:
    """Let `x` share the memory of another tensor, in its shape and dtype."""
    x.data = other.detach()
