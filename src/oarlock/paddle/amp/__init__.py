"""Mixed precision, and `debugging` where it goes wrong."""

from oarlock.paddle.amp import debugging
from oarlock.paddle.amp.auto_cast import (
    amp_decorate,
    amp_guard,
    auto_cast,
    autocast,
    decorate,
    get_autocast_cpu_dtype,
    get_autocast_dtype,
    get_autocast_gpu_dtype,
    is_autocast_enabled,
    is_bfloat16_supported,
    is_float16_supported,
)
from oarlock.paddle.amp.grad_scaler import GradScaler

__all__ = [
    "GradScaler",
    "amp_decorate",
    "amp_guard",
    "auto_cast",
    "autocast",
    "debugging",
    "decorate",
    "get_autocast_cpu_dtype",
    "get_autocast_dtype",
    "get_autocast_gpu_dtype",
    "is_autocast_enabled",
    "is_bfloat16_supported",
    "is_float16_supported",
]
