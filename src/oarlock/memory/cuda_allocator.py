"""All of torch's CUDA tensors in a pool that defragments itself."""

from __future__ import annotations

import ctypes
import threading

import torch

from oarlock import _native
from oarlock.memory.pool import Pool

_lock = threading.Lock()
_pools: dict[int, Pool] = {}
"""Of each device: for the life of the process, as torch frees until its end."""


def use_pool_for_cuda(
    capacity: int | None = None, *, devices: list[int] | None = None, page_bytes: int = 2 << 20
) -> dict[int, Pool]:
    """Makes the pool torch's allocator of CUDA memory, for the rest of the process.

    Torch's own figures (``torch.cuda.memory_allocated`` and others) and snapshots do not exist then; ``Pool.stats`` and
    ``oarlock.memory.record`` have them. What other streams use, as ``tensor.record_stream`` says, is respected. Pin
    what a CUDA graph has captured or another process has been given. Running out raises a MemoryError or RuntimeError
    with the pool's message.

    Args:
        capacity: bytes of each device; by default 0.95 of what is free on it now.
        devices: numbers; all that torch sees by default.
        page_bytes: see :class:`Pool`.

    Returns:
        the pool of each device.

    Raises:
        RuntimeError: torch has allocated CUDA memory already, has no CUDA, or was given the pool before.
        ValueError: a size that no pool can have.

    Written against NVIDIA's and torch's interfaces; ``make gpu-check`` runs it where there is a GPU.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no CUDA device")
    with _lock:
        if _pools:
            raise RuntimeError(f"pools serve the devices {', '.join(map(str, _pools))} already")
        torch.cuda.init()
        library = _native.library()
        made: dict[int, Pool] = {}
        for device in range(torch.cuda.device_count()) if devices is None else devices:
            free = torch.cuda.mem_get_info(device)[0]
            made[device] = Pool(
                int(0.95 * free) if capacity is None else capacity, driver="cuda", device=device, page_bytes=page_bytes
            )
        allocator = torch.cuda.memory.CUDAPluggableAllocator(
            str(_native.library_path()), "oarlock_torch_malloc", "oarlock_torch_free"
        )
        record = ctypes.cast(library.oarlock_torch_record_stream, ctypes.c_void_p).value
        allocator.allocator().set_record_stream_fn(record)  # type: ignore[attr-defined]
        torch.cuda.memory.change_current_allocator(allocator)
        for device, pool in made.items():
            pool.serve_torch(device)
        _pools.update(made)
        return dict(made)
