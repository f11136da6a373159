"""Rotary position embedding (RoPE): tables from position ids, and the rotation.

B batch, S sequence, H heads, D head dim.
"""

# pyright: reportIncompatibleMethodOverride=false
# (torch types `backward(ctx, *grads)`; the overrides name their gradients)

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from oarlock.ops import fused
from oarlock.ops.norm import rms_norm
from oarlock.ops.precision import compute_dtype

ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def rope_tables(
    position_ids: Tensor, head_dim: int, theta: float, scaling: Mapping[str, Any] | None = None
) -> tuple[Tensor, Tensor]:
    """cos and sin of position · frequency, with frequency_i = theta^(-2i / D) before scaling.

    YaRN also multiplies both by `rope_magnitude(scaling)`, so that the logits grow with the context.

    Args:
        position_ids: [B, S] integers; they may restart at each packed document.
        head_dim: D, even.
        theta: base of the frequencies.
        scaling: Hugging Face's `rope_scaling` fields: `rope_type` one of default, linear (`factor`), llama3 (`factor`,
            `low_freq_factor`, `high_freq_factor`, `original_max_position_embeddings`), yarn (`factor`,
            `original_max_position_embeddings`; optional `beta_fast` 32, `beta_slow` 1, `truncate` true and what
            `rope_magnitude` reads). None means default.

    Returns:
        (cos, sin), each float32 [B, S, D / 2]. Compute them once per forward pass and share them between layers.

    Raises:
        ValueError: odd head_dim or a rope_type that is not supported.

    Source: Su et al., "RoFormer", 2021; Peng et al., "YaRN", 2023; transformers `modeling_rope_utils.py` for the
    scaling kinds.
    """
    frequency_D = rope_frequencies(head_dim, theta, scaling, device=position_ids.device)
    angle_BSD = position_ids.unsqueeze(-1).to(torch.float32) * frequency_D
    cos, sin = angle_BSD.cos(), angle_BSD.sin()
    magnitude = rope_magnitude(scaling)
    return (cos, sin) if magnitude == 1.0 else (cos * magnitude, sin * magnitude)


def rope_frequencies(
    head_dim: int, theta: float, scaling: Mapping[str, Any] | None = None, *, device: torch.device | None = None
) -> Tensor:
    """The D / 2 angular frequencies in radians per position, float32 (see `rope_tables`)."""
    if head_dim % 2:
        raise ValueError(f"RoPE rotates pairs, so head_dim must be even; got {head_dim}")
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    frequency = 1.0 / (theta**exponent)
    kind = "default" if scaling is None else scaling["rope_type"]
    if scaling is None or kind == "default":
        return frequency
    if kind == "linear":
        return frequency / scaling["factor"]
    if kind == "llama3":
        return _llama3(frequency, scaling)
    if kind == "yarn":
        return _yarn(frequency, theta, scaling)
    raise ValueError(f"rope_type {kind!r} is not supported; supported: {', '.join(ROPE_TYPES)}")


def _llama3(frequency: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """Slow waves are stretched by `factor`, fast ones kept, those between interpolated."""
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    context = scaling["original_max_position_embeddings"]
    wavelength = 2 * math.pi / frequency
    smooth = (context / wavelength - low) / (high - low)
    interpolated = (1 - smooth) * frequency / factor + smooth * frequency
    stretched = torch.where(wavelength > context / low, frequency / factor, interpolated)
    return torch.where(wavelength < context / high, frequency, stretched)


def _yarn(frequency_D: Tensor, theta: float, scaling: Mapping[str, Any]) -> Tensor:
    """Waves that turn more than `beta_fast` times in the original context are kept, those that turn less than
    `beta_slow` times are stretched by `factor`, and those between interpolated along the dims."""
    half = frequency_D.numel()
    context = scaling["original_max_position_embeddings"]

    def dim_of(turns: float) -> float:
        """The pair of dims that turns so often: context · theta^(-i / half) = 2π · turns."""
        return half * math.log(context / (2 * math.pi * turns), theta)

    first, last = dim_of(scaling.get("beta_fast") or 32.0), dim_of(scaling.get("beta_slow") or 1.0)
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * half - 1)
    index_D = torch.arange(half, dtype=torch.float32, device=frequency_D.device)
    stretched_D = ((index_D - first) / (last - first or 1e-3)).clamp(0, 1)
    return frequency_D * (1 - stretched_D) + frequency_D / scaling["factor"] * stretched_D


def rope_magnitude(scaling: Mapping[str, Any] | None) -> float:
    """The factor of YaRN on cos and sin; 1 for every other kind.

    `attention_factor` if given; else with m(s) = 1 + 0.1 · s · ln(factor): m(`mscale`) / m(`mscale_all_dim`) where both
    are given, m(1) where not.
    """
    if scaling is None or scaling["rope_type"] != "yarn":
        return 1.0
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    factor, over_all = scaling["factor"], scaling.get("mscale_all_dim")
    if scaling.get("mscale") and over_all:
        return yarn_magnitude(factor, scaling["mscale"]) / yarn_magnitude(factor, over_all)
    return yarn_magnitude(factor)


def yarn_magnitude(factor: float, strength: float = 1.0) -> float:
    """1 + 0.1 · strength · ln(factor), and 1 for a factor of at most 1."""
    return 1.0 if factor <= 1 else 0.1 * strength * math.log(factor) + 1.0


def rope(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """Rotate each pair (a, b) of the head dim: (a · cos - b · sin, b · cos + a · sin).

    Args:
        x: [B, S, H, D], floating; half types are computed in float32.
        cos: float32 [B or 1, S, D / 2] from `rope_tables`.
        sin: same shape.
        interleaved: pairs are (x[2i], x[2i + 1]) as in ERNIE 4.5, DeepSeek; otherwise (x[i], x[i + D / 2]).

    Returns:
        [B, S, H, D] in x's dtype.
    """
    return _Rope.apply(x, cos, sin, interleaved)


def norm_rope(x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """rope(rms_norm(x, weight, eps), cos, sin): a query or key with QK-norm, in one sweep on the CPU.

    Args:
        x: [B, S, H, D], floating; half types are computed in float32.
        weight: [D] of the norm, which is over each head's vector.
        eps: added to the mean square.
        cos: float32 [B or 1, S, D / 2] from `rope_tables`.
        sin: same shape.
        interleaved: as in `rope`.

    Returns:
        [B, S, H, D] in x's dtype.
    """
    if fused.applies(x, weight, cos, sin) and not interleaved:
        return _NormRope.apply(x, weight, eps, cos, sin)
    return rope(rms_norm(x, weight, eps), cos, sin, interleaved=interleaved)


def rope_reference(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """`rope` as its formula reads."""
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2).to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, direction: int) -> Tensor:
    """Rotation by direction · angle, direction ±1."""
    if fused.applies(x, cos, sin):
        return fused.rope(x, cos, sin, interleaved=interleaved, inverse=direction < 0)
    dtype = compute_dtype(x.dtype)
    x_f = x.to(dtype)
    cos, sin = cos.unsqueeze(2).to(dtype), sin.unsqueeze(2).to(dtype)
    if interleaved:
        turn = torch.complex(cos, sin if direction > 0 else -sin)
        pairs = torch.view_as_complex(x_f.contiguous().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)
    half = x.shape[-1] // 2
    y = (x_f.unflatten(-1, (2, half)) * cos.unsqueeze(-2)).flatten(-2)
    y[..., :half].addcmul_(x_f[..., half:], sin, value=-direction)
    y[..., half:].addcmul_(x_f[..., :half], sin, value=direction)
    return y.to(x.dtype)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        return _rotate(x, cos, sin, interleaved, +1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotate(dy, cos, sin, ctx.interleaved, -1), None, None, None


class _NormRope(torch.autograd.Function):
    """The C++ kernels' way; `norm_rope` takes another where they do not apply."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
        y, inverse_rms = fused.norm_rope(x, weight, eps, cos, sin)
        ctx.save_for_backward(x, weight, inverse_rms, cos, sin)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        return *fused.norm_rope_backward(dy, *ctx.saved_tensors), None, None, None
