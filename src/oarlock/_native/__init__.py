"""The C++ core, loaded once through ctypes.

Each wrapper checks dtype, device, layout and shape of what it hands over, because the C side sees only pointers.
Inputs must already be what the core expects and results are new tensors, so nothing is ever converted or copied unseen.
"""

from oarlock._native.abi import ABI, Heads, Rotation
from oarlock._native.attention import ATTENTION_DTYPES, AttentionOptions, attention_backward, attention_forward
from oarlock._native.loader import call, isa, keep_freed_memory, library, library_path, version
from oarlock._native.masks import (
    mask_bias,
    mask_row_spans,
    mask_visible_per_key,
    mask_visible_per_row,
    mask_visible_per_tile,
)
from oarlock._native.tensors import check_tensor

__all__ = [
    "ABI",
    "ATTENTION_DTYPES",
    "AttentionOptions",
    "Heads",
    "Rotation",
    "attention_backward",
    "attention_forward",
    "call",
    "check_tensor",
    "isa",
    "keep_freed_memory",
    "library",
    "library_path",
    "mask_bias",
    "mask_row_spans",
    "mask_visible_per_key",
    "mask_visible_per_row",
    "mask_visible_per_tile",
    "version",
]
