"""Column-sparse attention (FlashMask) on plain tensors: `flashmask_attention` and its masks."""

from oarlock.attention.flashmask import flashmask_attention
from oarlock.attention.masks import ColumnMask
from oarlock.attention.varlen import flashmask_attention_varlen

__all__ = ["ColumnMask", "flashmask_attention", "flashmask_attention_varlen"]
