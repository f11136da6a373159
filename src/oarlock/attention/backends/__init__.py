"""Backends of the attention; importing this package registers them."""

from oarlock.attention.backends import cpu, decode, flex, fused, reference, triton

__all__ = ["cpu", "decode", "flex", "fused", "reference", "triton"]
