"""`paddle.incubate.nn`: the fused operations of decoders, and layers around them."""

from oarlock.paddle.incubate.nn import functional, memory_efficient_attention
from oarlock.paddle.incubate.nn.layers import (
    FusedBiasDropoutResidualLayerNorm,
    FusedDropoutAdd,
    FusedFeedForward,
    FusedLinear,
    FusedMultiHeadAttention,
    FusedTransformerEncoderLayer,
)

__all__ = [
    "FusedBiasDropoutResidualLayerNorm",
    "FusedDropoutAdd",
    "FusedFeedForward",
    "FusedLinear",
    "FusedMultiHeadAttention",
    "FusedTransformerEncoderLayer",
    "functional",
    "memory_efficient_attention",
]
