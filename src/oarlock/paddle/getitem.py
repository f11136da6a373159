"""Indexing in Paddle's meaning, where torch refuses: negative steps, and arrays as values.

`x[::-1]` and `x[:, ::-2] = v` are NumPy's. A list of lists is one index tensor; torch takes it for one list per
dimension, so that this holds for `paddle.Tensor.__getitem__` and in strict mode, not for plain tensors.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor


def getitem(x: Tensor, index: Any) -> Tensor:
    """`x[index]`."""
    x, index = _forward(x, index)
    return torch.Tensor.__getitem__(x, index)


def setitem(x: Tensor, index: Any, value: Any) -> None:
    """`x[index] = value`."""
    if isinstance(value, (np.ndarray, np.generic, list, tuple)):
        value = torch.as_tensor(np.asarray(value), device=x.device)
    if isinstance(value, Tensor):
        value = value.to(x.dtype)
    if not any(_is_backward(part) for part in _parts(index)):
        x[_as_index(index)] = value
        return
    places = getitem(torch.arange(x.numel(), device=x.device).reshape(x.shape), index)
    values = torch.as_tensor(value, dtype=x.dtype, device=x.device).expand(places.shape)
    x.copy_(x.flatten().index_put((places,), values).reshape(x.shape))


def _parts(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _is_backward(part: Any) -> bool:
    return isinstance(part, slice) and part.step is not None and int(part.step) < 0


def _as_index(index: Any) -> Any:
    """Lists of lists, or of tensors, as index tensors."""
    made = tuple(_joined(part) if isinstance(part, list) else part for part in _parts(index))
    return made if isinstance(index, tuple) else made[0]


def _joined(part: list[Any]) -> Any:
    if any(isinstance(v, Tensor) for v in part) and all(isinstance(v, (Tensor, int)) for v in part):
        return torch.stack([torch.as_tensor(v) for v in part])
    return torch.as_tensor(part) if any(isinstance(v, (list, tuple)) for v in part) else part


def _forward(x: Tensor, index: Any) -> tuple[Tensor, Any]:
    """`x` reversed along the dimensions that are read backward, and the index that reads it forward."""
    index = _as_index(index)
    if not any(_is_backward(part) for part in _parts(index)):
        return x, index
    parts = list(_parts(index))
    taken = sum(_num_dims(part) for part in parts)
    dim = 0
    for i, part in enumerate(parts):
        if part is Ellipsis:
            dim += x.ndim - taken
            continue
        if _is_backward(part):
            places = range(x.shape[dim])[part]
            first, last = (places[-1], places[0] + 1) if len(places) else (0, 0)
            ahead = slice(first, last, -places.step)
            x = torch.Tensor.__getitem__(x, (slice(None),) * dim + (ahead,)).flip(dim)
            parts[i] = slice(None)
        dim += _num_dims(part)
    return x, tuple(parts)


def _num_dims(part: Any) -> int:
    """How many dimensions of the tensor a part of an index reads."""
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    is_mask = isinstance(part, (Tensor, np.ndarray)) and part.dtype in (torch.bool, np.dtype(bool))
    return part.ndim if is_mask else 1
