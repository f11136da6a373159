"""`paddle.incubate.nn.functional.fp8`: blocks of 128 numbers that share a scale, in 8-bit floats."""

from typing import Any

import torch
from torch import Tensor

from oarlock.paddle.declare import api, exports
from oarlock.paddle.dtypes import as_dtype

ABOVE = "paddle.incubate.nn.functional"
AT = f"{ABOVE}.fp8"
BLOCK = 128
LARGEST = 448.0  # of float8_e4m3fn


def _spread(scale: Tensor, rows: int, columns: int) -> Tensor:
    """A scale per element [rows, columns] from one per block [rows or blocks, blocks]."""
    tall = scale if scale.shape[0] == rows else scale.repeat_interleave(BLOCK, 0)[:rows]
    return tall.repeat_interleave(BLOCK, 1)[:, :columns]


def _quantised(x: Tensor, epsilon: float, high: int, power_of_two: bool) -> tuple[Tensor, Tensor]:
    """(float8 [M, N], scales float32 [ceil(M / high), ceil(N / 128)] that give x back)."""
    rows, columns = x.shape
    down, across = -(-rows // high), -(-columns // BLOCK)
    full = torch.nn.functional.pad(x.float(), (0, across * BLOCK - columns, 0, down * high - rows))
    largest = full.reshape(down, high, across, BLOCK).abs().amax((1, 3)).clamp(min=epsilon)
    scale = torch.where(largest > 0, LARGEST / largest, 1.0)
    if power_of_two:
        scale = torch.exp2(torch.floor(torch.log2(scale)))
    whole = scale.repeat_interleave(high, 0)[:rows]
    small = (x.float() * _spread(whole, rows, columns)).clamp(-LARGEST, LARGEST)
    return small.to(torch.float8_e4m3fn), 1.0 / scale


@api(f"{ABOVE}.fp8_quant_blockwise", at=AT, out=False)
def fp8_quant_blockwise(
    x: Tensor,
    epsilon: float = 0.0,
    input_transpose: bool = False,
    output_scale_transpose: bool = True,
    return_transpose_only: bool = False,
    using_pow2_scale: bool = True,
    using_ue8m0_scale: bool = False,
    quant_method: str = "1x128",
    output_type: str = "e4m3",
) -> Any:
    """`x` as float8_e4m3fn with a scale for each block: `x ≈ quantised·scale`.

    Args:
        x: [M, N].
        epsilon: the largest magnitude of a block counts at least as much.
        input_transpose: also quantise the transpose, with blocks along its own rows.
        output_scale_transpose: give the scales transposed, [ceil(N / 128), M].
        return_transpose_only: with `input_transpose`, leave out the first two results.
        using_pow2_scale: scales are powers of two.
        quant_method: "1x128", or "128x128" for square blocks.

    Returns:
        (quantised [M, N], scales float32 [M, ceil(N / 128)] or [ceil(M / 128), ceil(N / 128)], and the same two of the
        transpose where asked for).

    Raises:
        ValueError: another method or type, or `using_ue8m0_scale`.
    """
    if quant_method not in ("1x128", "128x128") or output_type != "e4m3" or using_ue8m0_scale:
        raise ValueError("fp8_quant_blockwise takes '1x128' or '128x128', 'e4m3' and using_ue8m0_scale=False")
    high = 1 if quant_method == "1x128" else BLOCK
    made: list[Tensor] = []
    for part in [*([] if input_transpose and return_transpose_only else [x]), *([x.T] if input_transpose else [])]:
        small, scale = _quantised(part, epsilon, high, using_pow2_scale)
        made += [small, scale.T.contiguous() if output_scale_transpose else scale]
    return tuple(made)


def _decoded(small: Tensor, scale: Tensor, by_row: bool) -> Tensor:
    rows, columns = small.shape
    if by_row and tuple(scale.shape) == (-(-columns // BLOCK), rows):
        scale = scale.T
    return small.float() * _spread(scale.float(), rows, columns)


@api(f"{ABOVE}.fp8_gemm_blockwise", at=AT, out=False)
def fp8_gemm_blockwise(
    a: Tensor,
    a_decode_scale: Tensor,
    b: Tensor,
    b_decode_scale: Tensor,
    out_dtype: Any,
    out: Tensor | None = None,
    bias: Tensor | None = None,
    accumulate: bool = False,
    use_split_accumulator: bool = True,
    is_a_1d_scaled: bool = True,
    is_b_1d_scaled: bool = True,
) -> Tensor:
    """`a @ bᵀ` of float8 matrices, added up in float32.

    Args:
        a: float8 [M, K].
        a_decode_scale: float32 [K / 128, M] as `fp8_quant_blockwise` gives it, or [M / 128, K / 128] if not
            `is_a_1d_scaled`.
        b: float8 [N, K], with scales alike.
        out: [M, N], written to; with `accumulate` added to.

    Raises:
        ValueError: a bias.
    """
    if bias is not None:
        raise ValueError("fp8_gemm_blockwise takes no bias")
    made = _decoded(a, a_decode_scale, is_a_1d_scaled) @ _decoded(b, b_decode_scale, is_b_1d_scaled).T
    if out is None:
        return made.to(as_dtype(out_dtype))
    return out.copy_(made + out.float() if accumulate else made)


@api(f"{ABOVE}.fused_act_dequant", at=AT, out=False)
def fused_act_dequant(x: Tensor, x_scale: Tensor) -> Tensor:
    """`x·x_scale` in bfloat16: float8 [M, N] with a scale float32 [M, ceil(N / 128)] for each block."""
    return _decoded(x, x_scale, False).bfloat16()


@api(f"{ABOVE}.fused_swiglu_weighted_bwd", at=AT, out=False)
def fused_swiglu_weighted_bwd(o1: Tensor, do2_s: Tensor, unzipped_probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The backward pass of `silu(gate)·up·probability` for gate and up in the halves of `o1`.

    Args:
        o1: [..., 2·F].
        do2_s: [..., F], the gradient of the result.
        unzipped_probs: float32 [...] or [..., 1].

    Returns:
        (gradient of o1, gradient of the probabilities in their shape, the result [..., F]).
    """
    gate, up = o1.float().chunk(2, -1)
    grad, chance = do2_s.float(), unzipped_probs.float().reshape(*o1.shape[:-1], 1)
    gated = torch.sigmoid(gate)
    plain = gate * gated * up
    inner = grad * chance
    dgate, dup = inner * up * gated * (1 + gate * (1 - gated)), inner * gate * gated
    share = (grad * plain).sum(-1).reshape(unzipped_probs.shape)
    return torch.cat([dgate, dup], -1).to(o1.dtype), share, (plain * chance).to(o1.dtype)


globals().update(exports(AT))
