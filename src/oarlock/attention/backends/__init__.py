"""Backends of the attention; importing this package registers them."""

from oarlock.attention.backends import cpu, reference

__all__ = ["cpu", "reference"]
