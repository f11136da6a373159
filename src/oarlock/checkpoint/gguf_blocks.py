"""The types of GGUF's tensors: plain ones, and quantised ones as formulas from the bytes of a block to its values.

A block holds N consecutive values of a row. q are small integers, d and m scales in float16 (d q is exact in float32),

    Q4_0, Q5_0, Q8_0    d (q - c)               c = 8, 16, 0;  N = 32
    Q4_1, Q5_1          d q + m                 N = 32
    Q2_K, Q4_K, Q5_K    d s_g q - m t_g         s_g, t_g of 4 or 6 bits per group g of 16 or 32 values;  N = 256
    Q3_K, Q6_K          d s_g (q - c)           c = 4, 32;  N = 256
    IQ4_NL, IQ4_XS      d s_g table[q]          N = 32, 256
    MXFP4               2^(e - 127) table[q]    N = 32

Q5 and the K types keep the upper bits of q apart from the lower ones. Groups of halves are stored as pairs of nibbles:
the lower nibbles of a group's bytes are its first half, the upper ones its second half.

Source: ggml-org/llama.cpp, ggml/src/ggml-common.h (layouts) and ggml-quants.c (formulas).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

PLAIN = {
    0: ("F32", torch.float32),
    1: ("F16", torch.float16),
    30: ("BF16", torch.bfloat16),
    28: ("F64", torch.float64),
    24: ("I8", torch.int8),
    25: ("I16", torch.int16),
    26: ("I32", torch.int32),
    27: ("I64", torch.int64),
}
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


class BlockType(NamedTuple):
    """How `num_bytes` bytes become `num_values` values: uint8 [n, num_bytes] -> float32 [n, num_values]."""

    name: str
    num_values: int
    num_bytes: int
    decode: Callable[[Tensor], Tensor]


# ---- blocks of 32 ----------------------------------------------------------------------------------------------------


def _q4_0(block: Tensor) -> Tensor:
    return _half(block, 0) * (_nibbles(block[:, 2:]) - 8)


def _q4_1(block: Tensor) -> Tensor:
    return _half(block, 0) * _nibbles(block[:, 4:]) + _half(block, 2)


def _q5_0(block: Tensor) -> Tensor:
    return _half(block, 0) * (_fifth_bits(block[:, 2:6], block[:, 6:]) - 16)


def _q5_1(block: Tensor) -> Tensor:
    return _half(block, 0) * _fifth_bits(block[:, 4:8], block[:, 8:]) + _half(block, 2)


def _q8_0(block: Tensor) -> Tensor:
    return _half(block, 0) * _signed(block[:, 2:])


def _iq4_nl(block: Tensor) -> Tensor:
    return _half(block, 0) * _looked_up(_IQ4, _nibbles(block[:, 2:]))


def _mxfp4(block: Tensor) -> Tensor:
    scale = block[:, :1].contiguous().view(torch.float8_e8m0fnu).float()
    return scale * _looked_up(_E2M1, _nibbles(block[:, 1:]))


# ---- blocks of 256 ---------------------------------------------------------------------------------------------------


def _q2_k(block: Tensor) -> Tensor:
    scales = block[:, :16, None]
    q = _pairs_of_bits(block[:, 16:80]).view(-1, 16, 16)
    d, m = _half(block, 80)[..., None], _half(block, 82)[..., None]
    return (d * (scales & 15) * q - m * (scales >> 4)).flatten(1)


def _q3_k(block: Tensor) -> Tensor:
    high = torch.stack([(block[:, :32] >> k) & 1 for k in range(8)], dim=1).flatten(1)
    q = _pairs_of_bits(block[:, 32:96]) + 4 * high.to(torch.int8) - 4
    packed = block[:, 96:108]
    low = torch.cat([packed[:, :8] & 15, packed[:, :8] >> 4], dim=1)
    upper = torch.cat([(packed[:, 8:] >> shift) & 3 for shift in (0, 2, 4, 6)], dim=1)
    scales = (low | (upper << 4)).to(torch.int8) - 32
    return (_half(block, 108)[..., None] * scales[..., None] * q.view(-1, 16, 16)).flatten(1)


def _q4_k(block: Tensor) -> Tensor:
    return _scaled_with_minima(block, _nibbles(block[:, 16:], 32))


def _q5_k(block: Tensor) -> Tensor:
    high = torch.stack([(block[:, 16:48] >> k) & 1 for k in range(8)], dim=1).flatten(1).to(torch.int8)
    return _scaled_with_minima(block, _nibbles(block[:, 48:], 32) + 16 * high)


def _q6_k(block: Tensor) -> Tensor:
    low = _nibbles(block[:, :128], 64).view(-1, 2, 4, 32)
    high = block[:, 128:192].reshape(-1, 2, 1, 32)
    high = torch.cat([(high >> shift) & 3 for shift in (0, 2, 4, 6)], dim=2).to(torch.int8)
    q = (low + 16 * high - 32).view(-1, 16, 16)
    return (_half(block, 208)[..., None] * _signed(block[:, 192:208])[..., None] * q).flatten(1)


def _iq4_xs(block: Tensor) -> Tensor:
    low = torch.stack([block[:, 4:8] & 15, block[:, 4:8] >> 4], dim=2).flatten(1)
    upper = torch.stack([(block[:, 2:4] >> shift) & 3 for shift in (0, 2, 4, 6)], dim=2).flatten(1)
    scales = (low | (upper << 4)).to(torch.int8) - 32
    values = _looked_up(_IQ4, _nibbles(block[:, 8:], 16)).view(-1, 8, 32)
    return (_half(block, 0)[..., None] * scales[..., None] * values).flatten(1)


def _scaled_with_minima(block: Tensor, q: Tensor) -> Tensor:
    """Eight groups of 32 with 6-bit scales and minima, packed in the bytes 4 to 16."""
    a, b, c = block[:, 4:8], block[:, 8:12], block[:, 12:16]
    scales = torch.cat([a & 63, (c & 15) | ((a >> 6) << 4)], dim=1)
    minima = torch.cat([b & 63, (c >> 4) | ((b >> 6) << 4)], dim=1)
    d, m = _half(block, 0), _half(block, 2)
    return ((d * scales)[..., None] * q.view(-1, 8, 32) - (m * minima)[..., None]).flatten(1)


# ---- bits ------------------------------------------------------------------------------------------------------------


def _half(block: Tensor, start: int) -> Tensor:
    """The float16 at a byte of every block, as float32 [n, 1]."""
    return block[:, start : start + 2].contiguous().view(torch.float16).float()


def _signed(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.int8)


def _nibbles(packed: Tensor, group: int = 16) -> Tensor:
    """Lower, then upper nibbles of every `group` bytes, int8."""
    groups = packed.unflatten(1, (-1, group))
    return torch.stack([groups & 15, groups >> 4], dim=2).flatten(1).view(torch.int8)


def _fifth_bits(high: Tensor, low: Tensor) -> Tensor:
    """Nibbles with a fifth bit each, int8."""
    bits = torch.stack([(high >> k) & 1 for k in range(8)], dim=2).flatten(1).to(torch.int8)
    return _nibbles(low) + 16 * bits


def _pairs_of_bits(packed: Tensor) -> Tensor:
    """Two bits per value: of every 32 bytes first the lowest two of each, int8."""
    groups = packed.unflatten(1, (-1, 32))
    return torch.stack([(groups >> shift) & 3 for shift in (0, 2, 4, 6)], dim=2).flatten(1).view(torch.int8)


def _looked_up(table: tuple[float, ...], codes: Tensor) -> Tensor:
    return torch.tensor(table, dtype=torch.float32, device=codes.device)[codes.int()]


BLOCKS = {
    2: BlockType("Q4_0", 32, 18, _q4_0),
    3: BlockType("Q4_1", 32, 20, _q4_1),
    6: BlockType("Q5_0", 32, 22, _q5_0),
    7: BlockType("Q5_1", 32, 24, _q5_1),
    8: BlockType("Q8_0", 32, 34, _q8_0),
    10: BlockType("Q2_K", 256, 84, _q2_k),
    11: BlockType("Q3_K", 256, 110, _q3_k),
    12: BlockType("Q4_K", 256, 144, _q4_k),
    13: BlockType("Q5_K", 256, 176, _q5_k),
    14: BlockType("Q6_K", 256, 210, _q6_k),
    20: BlockType("IQ4_NL", 32, 18, _iq4_nl),
    23: BlockType("IQ4_XS", 256, 136, _iq4_xs),
    39: BlockType("MXFP4", 32, 17, _mxfp4),
}
UNREADABLE = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    40: "NVFP4",
}
