"""The engine: backward of several tensors, and whole matrices of derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool = False,
    *,
    dump_backward_graph_path: str | None = None,
) -> None:
    """Add the gradients of the sum of `tensors`, each times its `grad_tensors` (ones by default), to the leaves.

    Args:
        dump_backward_graph_path: folder that gets the backward graph as `backward_graph.dot` before it runs.
    """
    roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    given = [grad_tensors] if isinstance(grad_tensors, Tensor) else grad_tensors
    weights = [None] * len(roots) if given is None else list(given)
    if len(weights) != len(roots):
        raise ValueError(f"backward() got {len(roots)} tensors and {len(weights)} gradients for them")
    if dump_backward_graph_path is not None:
        from oarlock.paddle.autograd.picture import write_backward_graph

        write_backward_graph(roots, dump_backward_graph_path)
    ones = [torch.ones_like(t) if w is None else w for t, w in zip(roots, weights, strict=True)]
    torch.autograd.backward(roots, ones, retain_graph=retain_graph)


def jacobian(ys: Any, xs: Any, batch_axis: int | None = None) -> Any:
    """d ys / d xs as [M, N] (or [B, M, N] with `batch_axis=0`), of flat ys and xs; for several, in tuples.

    Raises:
        ValueError: another batch axis than 0.
    """
    if batch_axis not in (None, 0):
        raise ValueError(f"batch_axis must be None or 0, got {batch_axis}")
    if isinstance(ys, (list, tuple)):
        return tuple(jacobian(y, xs, batch_axis) for y in ys)
    if isinstance(xs, (list, tuple)):
        return tuple(jacobian(ys, x, batch_axis) for x in xs)
    if batch_axis is None:
        rows = [torch.autograd.grad(y, xs, create_graph=True, allow_unused=True)[0] for y in ys.flatten()]
        made = torch.stack([torch.zeros_like(xs) if row is None else row for row in rows]).flatten(1)
        return made if ys.ndim else made[0]
    columns = ys.reshape(len(ys), -1)
    rows = [
        torch.autograd.grad(columns[:, m].sum(), xs, create_graph=True, allow_unused=True)[0]
        for m in range(columns.shape[1])
    ]
    return torch.stack([torch.zeros_like(xs) if row is None else row for row in rows], 1).flatten(2)


def hessian(ys: Tensor, xs: Any, batch_axis: int | None = None) -> Any:
    """Second derivatives of a scalar (or of one number per sample) as [N, N] (or [B, N, N])."""
    if isinstance(xs, (list, tuple)):
        return tuple(tuple(_second(ys, a, b, batch_axis) for b in xs) for a in xs)
    return _second(ys, xs, xs, batch_axis)


def _second(ys: Tensor, a: Tensor, b: Tensor, batch_axis: int | None) -> Any:
    (first,) = torch.autograd.grad(ys.sum(), a, create_graph=True, materialize_grads=True)
    if not first.requires_grad:  # of a linear function: zeros, whatever b is
        first = first + 0 * b.sum()
    return jacobian(first if batch_axis is not None else first.flatten(), b, batch_axis)
