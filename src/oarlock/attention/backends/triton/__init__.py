"""GPU attention in Triton: online softmax over the visible tiles, forward and backward.

Keys and values are neither expanded nor copied, whatever their strides. Work items of unequal length are taken from a
queue on the device, longest first; nothing is accumulated across programs, so that equal inputs always give equal bits.

On the CPU the same kernels run in Triton's interpreter (``TRITON_INTERPRET=1`` before the first import), very slowly.

Source: Wang et al., FlashMask, arXiv 2410.01359; Dao, FlashAttention-2, arXiv 2307.08691.
"""

from __future__ import annotations

import functools
import importlib.util
import os

import torch
from torch import Tensor

from oarlock.attention.request import BACKWARD, OP, AttentionRequest, Options
from oarlock.providers import register

MAX_HEAD_DIM = 256
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_DEVICES = ("cuda", "xpu")


@functools.cache
def _is_interpreted() -> bool:
    """Whether kernels run on the CPU."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return False
    from oarlock.attention.backends.triton.tiles import INTERPRETED

    return INTERPRETED


def _refuse(request: AttentionRequest) -> str | None:
    if request.dtype not in _DTYPES:
        return f"needs float32, bfloat16 or float16, got {request.dtype}"
    if max(request.head_dim, request.value_dim) > MAX_HEAD_DIM:
        return f"takes head dims up to {MAX_HEAD_DIM}, got {request.head_dim} and {request.value_dim}"
    if request.device.type not in (*_DEVICES, "cpu"):
        return f"runs on {' or '.join(_DEVICES)}, the tensors are on {request.device}"
    if importlib.util.find_spec("triton") is None:
        return "needs the package triton"
    if request.device.type == "cpu" and not _is_interpreted():
        return f"runs on {' or '.join(_DEVICES)}; on the CPU only in Triton's interpreter (TRITON_INTERPRET=1)"
    return None


@register(OP, "triton", priority=5, refuse=_refuse)
def triton(query: Tensor, key: Tensor, value: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """The forward."""
    from oarlock.attention.backends.triton import launch

    return launch.forward(query, key, value, options)


@register(BACKWARD, "triton", priority=5, refuse=_refuse)
def triton_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    options: Options,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients."""
    from oarlock.attention.backends.triton import launch

    return launch.backward(grad_out, grad_lse, query, key, value, out, lse, options)
