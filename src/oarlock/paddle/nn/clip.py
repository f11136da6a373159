"""Gradient clipping, given to an optimizer as `grad_clip=`. Parameters with `need_clip = False` are left alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

lists: Any = torch  # its operations on lists of tensors are not in its stubs

Pairs = Sequence[tuple[Tensor, Tensor]]


class ClipGradByValue:
    """Each element into [min, max]; `min` is -max by default."""

    def __init__(self, max: float, min: float | None = None) -> None:
        self.max, self.min = max, -max if min is None else min

    def __str__(self) -> str:
        return f"Clip Gradient By Value, min = {self.min:f}, max={self.max:f}"

    def __call__(self, params_grads: Pairs) -> list[tuple[Tensor, Tensor]]:
        """(parameter, gradient) with new gradients."""
        return [(p, g.clamp(self.min, self.max) if _needs(p) else g) for p, g in params_grads]


class ClipGradByNorm:
    """Each gradient by itself scaled down to a 2-norm of at most `clip_norm`."""

    def __init__(self, clip_norm: float) -> None:
        self.clip_norm = clip_norm

    def __str__(self) -> str:
        return f"Gradient Clip By Norm, clip_norm={self.clip_norm:f}"

    def __call__(self, params_grads: Pairs) -> list[tuple[Tensor, Tensor]]:
        """(parameter, gradient) with new gradients."""
        made = []
        for p, g in params_grads:
            if _needs(p):
                norm = torch.linalg.vector_norm(g.float()).clamp(min=self.clip_norm)
                g = g * (self.clip_norm / norm).to(g.dtype)
            made.append((p, g))
        return made


class ClipGradByGlobalNorm:
    """All gradients scaled by clip_norm / max(norm, clip_norm), with the 2-norm of all of them together."""

    def __init__(self, clip_norm: float, group_name: str = "default_group", auto_skip_clip: bool = False) -> None:
        self.clip_norm, self.group_name, self.auto_skip_clip = clip_norm, group_name, auto_skip_clip

    def __str__(self) -> str:
        return f"Gradient Clip By GlobalNorm, global_norm={self.clip_norm:f}"

    def __call__(self, params_grads: Pairs) -> list[tuple[Tensor, Tensor]]:
        """(parameter, gradient) with new gradients."""
        clipped = [g for p, g in params_grads if _needs(p)]
        if not clipped:
            return list(params_grads)
        norms = lists._foreach_norm(clipped)
        norm = torch.linalg.vector_norm(torch.stack([each.float() for each in norms]))
        if self.auto_skip_clip and float(norm) <= self.clip_norm:
            return list(params_grads)
        scale = self.clip_norm / norm.clamp(min=self.clip_norm)
        scaled = iter(lists._foreach_mul(clipped, scale))
        return [(p, next(scaled) if _needs(p) else g) for p, g in params_grads]


def _needs(parameter: Tensor) -> bool:
    return getattr(parameter, "need_clip", True)
