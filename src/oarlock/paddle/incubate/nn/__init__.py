"""`paddle.incubate.nn`: the fused operations of decoders."""

from oarlock.paddle.incubate.nn import functional, memory_efficient_attention

__all__ = ["functional", "memory_efficient_attention"]
