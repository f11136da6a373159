"""`paddle.cuda`: GPUs under the names of torch.cuda."""

from typing import Any

import torch
from torch import (
    BFloat16Tensor,
    BoolTensor,
    ByteTensor,
    CharTensor,
    DoubleTensor,
    FloatTensor,
    HalfTensor,
    IntTensor,
    LongTensor,
    ShortTensor,
)
from torch.cuda import check_error, cudart, is_available, is_initialized, nvtx

from oarlock.paddle import amp
from oarlock.paddle.device import (
    Event,
    Stream,
    StreamContext,
    current_device,
    current_stream,
    device,
    device_count,
    empty_cache,
    get_device_capability,
    get_device_name,
    get_device_properties,
    get_rng_state,
    get_stream_from_external,
    ipc_collect,
    is_bf16_supported,
    is_current_stream_capturing,
    manual_seed,
    manual_seed_all,
    max_memory_allocated,
    max_memory_reserved,
    memory_allocated,
    memory_reserved,
    reset_max_memory_allocated,
    reset_max_memory_reserved,
    reset_peak_memory_stats,
    set_device,
    set_rng_state,
    set_stream,
    stream,
    synchronize,
)
from oarlock.paddle.device.devices import number_of

__all__ = [
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "Event",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "ShortTensor",
    "Stream",
    "StreamContext",
    "amp",
    "check_error",
    "cudart",
    "current_device",
    "current_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_stream_from_external",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "nvtx",
    "reset_max_memory_allocated",
    "reset_max_memory_reserved",
    "reset_peak_memory_stats",
    "set_device",
    "set_rng_state",
    "set_stream",
    "stream",
    "synchronize",
]


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Bytes of a GPU that are free, and all of them.

    Raises:
        ValueError: there is none but the CPU.
    """
    return torch.cuda.mem_get_info(number_of(device))
