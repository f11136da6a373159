"""A backend under test: its inputs, its results, and their comparison with the dense definition.

float64 where a backend has it, compared to rounding; else float32, whose dot products of a few hundred terms of size 1
differ from the float64 oracle by some 1e-6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from attention.oracle import dense_attention
from oarlock.attention import ColumnMask, flashmask_attention
from oarlock.attention.request import OP, AttentionRequest
from oarlock.providers import explain

EXACT, ROUNDED = {"rtol": 1e-9, "atol": 1e-11}, {"rtol": 2e-5, "atol": 2e-5}


@dataclass(frozen=True)
class Kernel:
    """A backend on a device, with the most exact dtype that it takes."""

    name: str
    device: torch.device
    dtype: torch.dtype

    @property
    def tolerance(self) -> dict[str, float]:
        return EXACT if self.dtype == torch.float64 else ROUNDED

    def need(self, rows: int = 1, dtype: torch.dtype | None = None, **properties: Any) -> None:
        """Skips the test if the backend refuses such a call."""
        reason = refusal(self.name, self.device, dtype or self.dtype, is_decoding=rows <= 16, **properties)
        if reason is not None:
            pytest.skip(reason)

    def inputs(
        self,
        rows: int,
        keys: int | None = None,
        *,
        batch: int = 1,
        heads: tuple[int, int] = (2, 2),
        dims: tuple[int, int] = (8, 8),
    ) -> list[Tensor]:
        """Random query, key and value that want gradients."""
        self.need(rows, head_dim=dims[0], value_dim=dims[1])
        keys = rows if keys is None else keys
        shapes = [(batch, rows, heads[0], dims[0]), (batch, keys, heads[1], dims[0]), (batch, keys, heads[1], dims[1])]
        return [torch.randn(shape, dtype=self.dtype).requires_grad_() for shape in shapes]

    def run(self, tensors: Any, mask: ColumnMask | None, **options: Any) -> list[Tensor]:
        """out and lse."""
        return flashmask_attention(*tensors, mask, return_softmax_lse=True, backend=self.name, **options)

    def check(
        self, tensors: Any, mask: ColumnMask | None, visible: Tensor | None = None, **options: Any
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """Compares values and gradients through out and lse with the dense definition; returns both."""
        if visible is None:
            assert mask is not None
            visible = mask.to_dense()
        got = self.run(tensors, mask, **options)
        expected = dense_attention(*tensors, visible, tensors[0].shape[-1] ** -0.5)
        seeds = [torch.randn_like(x) for x in got]
        ours, theirs = torch.autograd.grad(got, tensors, seeds), torch.autograd.grad(expected, tensors, seeds)
        for x, wanted in zip((*got, *ours), (*expected, *theirs), strict=True):
            torch.testing.assert_close(x, wanted.to(x.dtype), **self.tolerance)
        return got, ours


def refusal(name: str, device: torch.device, dtype: torch.dtype, **properties: Any) -> str | None:
    """Why a backend does not take such a call."""
    return dict(explain(OP, AttentionRequest(device, dtype, **properties)))[name]
