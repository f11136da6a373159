"""Rotary position embeddings. B batch, S sequence, H heads, D head size, P rotated features."""

import torch
from torch import Tensor

from oarlock import ops
from oarlock.paddle.declare import api

AT = "paddle.incubate.nn.functional"


def _turned(x: Tensor, adjacent: bool) -> Tensor:
    """Each pair (a, b) as (-b, a); pairs lie next to each other or half of D apart."""
    if adjacent:
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack([-b, a], -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


@api(at=AT, out=False)
def fused_rotary_position_embedding(
    q: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    sin: Tensor | None = None,
    cos: Tensor | None = None,
    position_ids: Tensor | None = None,
    use_neox_rotary_style: bool = True,
    time_major: bool = False,
    rotary_emb_base: float = 10000.0,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Rotate the pairs of each head of q, k and v: `x·cos + turned(x)·sin` with (a, b) turned to (-b, a).

    Args:
        q: [B, S, H, D], or [S, B, H, D] if `time_major`; k and v alike, with heads of their own number.
        sin: [S, D] or [1, S, 1, D], one number for each feature; None: made from positions and `rotary_emb_base`.
        cos: as `sin`.
        position_ids: int64 [B, S], the rows of `sin` and `cos` to take; None: 0, 1, ...
        use_neox_rotary_style: pairs lie next to each other; else half of D apart.

    Returns:
        The rotated tensors, None where none was given.

    Raises:
        ValueError: tables are made, but positions or the other style are asked for, which Paddle refuses too.
    """
    if (sin is None or cos is None) and (position_ids is not None or not use_neox_rotary_style):
        raise ValueError("without sin and cos, position_ids and use_neox_rotary_style=False are not supported")
    time_dim = 0 if time_major else 1
    length, width = q.shape[time_dim], q.shape[-1]

    def rotated(x: Tensor) -> Tensor:
        if sin is None or cos is None:
            at = torch.arange(length, device=x.device)[None]
            tables = ops.rope_tables(at, width, rotary_emb_base)
            swapped = x.transpose(0, 1) if time_major else x
            made = ops.rope(swapped, *tables, interleaved=True)
            return made.transpose(0, 1) if time_major else made
        shape = [1] * 4
        shape[time_dim], shape[3] = length, width
        sines, cosines = _wide(sin).reshape(-1, width), _wide(cos).reshape(-1, width)
        if position_ids is None:
            sines, cosines = sines[:length].reshape(shape), cosines[:length].reshape(shape)
        else:
            rows = position_ids.long().T if time_major else position_ids.long()
            sines, cosines = sines[rows].unsqueeze(2), cosines[rows].unsqueeze(2)
        wide = _wide(x)
        return (wide * cosines + _turned(wide, use_neox_rotary_style) * sines).to(x.dtype)

    return rotated(q), None if k is None else rotated(k), None if v is None else rotated(v)


@api(at=AT)
def fused_partial_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the last P features of each head; the others stay.

    The P features are put in the order even, odd; then `x·cos + turned(x)·sin`, the halves (a, b) turned to (-b, a).

    Args:
        x: [B, S, H, D].
        cos: [1, S, 1, P], P even and at most D.
        sin: as `cos`.

    Returns:
        [B, S, H, D].
    """
    width = cos.shape[-1]
    if width % 2 or width > x.shape[-1]:
        raise ValueError(f"cos has {width} features; they must be even in number and at most {x.shape[-1]}")
    fixed, moving = x[..., : x.shape[-1] - width], _wide(x[..., x.shape[-1] - width :])
    moving = moving.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    made = moving * _wide(cos) + _turned(moving, False) * _wide(sin)
    return torch.cat([fixed, made.to(x.dtype)], -1)
