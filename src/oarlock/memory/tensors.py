"""torch tensors that live in a pool."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from oarlock.memory.pool import Pool

_CAPSULE_NAME = b"dltensor"  # a capsule keeps the pointer, so the name must live as long as the process
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def empty(pool: Pool, size: Sequence[int], *, dtype: torch.dtype | None = None, tag: int = 0) -> Tensor:
    """An uninitialised CPU tensor in the pool; its memory is freed with its last view.

    Args:
        pool: with driver "host" or "host_memfd".
        size: shape of the tensor, contiguous.
        dtype: torch's default dtype if None.
        tag: of the allocation, see :meth:`Pool.malloc`.

    Returns:
        a tensor whose storage cannot be resized. It must not be used after :meth:`Pool.close` or while its tag sleeps.

    Raises:
        OutOfMemoryError: the pool has no room.
        ValueError: a negative size, or a pool without host memory.
        TypeError: `dtype` is no torch dtype.
    """
    if pool.driver not in ("host", "host_memfd"):
        raise ValueError(f"tensors need a pool with host memory, this one's driver is {pool.driver!r}")
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype = {dtype!r}: give a torch dtype, such as torch.float32")
    if any(length < 0 for length in size):
        raise ValueError(f"size must not be negative, got {list(size)}")
    num_bytes = math.prod(size) * dtype.itemsize
    if num_bytes == 0:
        return torch.empty(size, dtype=dtype, device="cpu")
    capsule = _new_capsule(pool.dlpack(pool.malloc(num_bytes, tag=tag), num_bytes), _CAPSULE_NAME, None)
    return from_dlpack(capsule).view(dtype).view(list(size))
