"""`paddle.incubate.nn.memory_efficient_attention`."""

from oarlock.paddle.incubate.nn.functional.attention import memory_efficient_attention

__all__ = ["memory_efficient_attention"]
