"""Mixed precision."""

from oarlock.paddle.amp.auto_cast import amp_guard, auto_cast, decorate, is_bfloat16_supported, is_float16_supported
from oarlock.paddle.amp.grad_scaler import GradScaler

__all__ = ["GradScaler", "amp_guard", "auto_cast", "decorate", "is_bfloat16_supported", "is_float16_supported"]
