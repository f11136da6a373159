"""`paddle.utils.dlpack`: tensors from and for other libraries, in the same memory."""

from oarlock.paddle.framework import from_dlpack, to_dlpack

__all__ = ["from_dlpack", "to_dlpack"]
