"""Backends of the attention; importing this package registers them."""

from oarlock.attention.backends import cpu, decode, fused, reference, triton

__all__ = ["cpu", "decode", "fused", "reference", "triton"]
