"""Constructors of masks over one sequence per batch row; they are class methods of ``ColumnMask``.

Legend: B batch, Hm mask heads, Sq query rows, Sk key columns; row i stands at position p = i + Sk - Sq of the keys, as
in a cache; visible(i, j) is the defining predicate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

Device = torch.device | str | None


class SequenceMasks:
    """Masks of plain sequences: windows, prefixes, blocks, padding, sparse choices of keys."""

    if TYPE_CHECKING:

        def __init__(self, bounds: Tensor, causal: bool, seqlen_q: int) -> None: ...

    @classmethod
    def full(cls, seqlen_q: int, seqlen_k: int | None = None, *, batch: int = 1, device: Device = None) -> Self:
        """Every row sees every key."""
        bounds_2 = torch.tensor([seqlen_q, 0], dtype=torch.int32, device=device)
        seqlen_k = seqlen_q if seqlen_k is None else seqlen_k
        return cls(bounds_2.expand(batch, 1, seqlen_k, 2).contiguous(), False, seqlen_q)

    @classmethod
    def plain_causal(cls, seqlen_q: int, seqlen_k: int | None = None, *, batch: int = 1, device: Device = None) -> Self:
        """visible = j <= p: the last row sees all keys."""
        shape = (batch, 1, seqlen_q if seqlen_k is None else seqlen_k, 1)
        return cls(torch.full(shape, seqlen_q, dtype=torch.int32, device=device), True, seqlen_q)

    @classmethod
    def sliding_window(
        cls,
        seqlen_q: int,
        seqlen_k: int | None = None,
        *,
        left: int,
        right: int = 0,
        batch: int = 1,
        device: Device = None,
    ) -> Self:
        """visible = p - left <= j <= p + right; the row's own key counts beside ``left``: W keys are left = W - 1."""
        if left < 0 or right < 0:
            raise ValueError(f"left and right must not be negative, got {left} and {right}")
        row_K = _own_rows(seqlen_q, seqlen_k, device)
        columns = [row_K + left + 1] if right == 0 else [row_K + left + 1, row_K - right]
        return cls(_bounds(columns, seqlen_q, batch), right == 0, seqlen_q)

    @classmethod
    def sink_window(
        cls,
        seqlen_q: int,
        seqlen_k: int | None = None,
        *,
        num_sinks: int,
        window: int,
        batch: int = 1,
        device: Device = None,
    ) -> Self:
        """StreamingLLM: visible = j <= p and (j < num_sinks or p - j < window)."""
        _at_least_1("window", window)
        row_K = _own_rows(seqlen_q, seqlen_k, device)
        is_sink = torch.arange(len(row_K), device=device) < num_sinks
        return cls(_bounds([torch.where(is_sink, seqlen_q, row_K + window)], seqlen_q, batch), True, seqlen_q)

    @classmethod
    def global_window(
        cls, seqlen: int, *, num_global: int, left: int, right: int, batch: int = 1, device: Device = None
    ) -> Self:
        """Longformer: visible = i < num_global or j < num_global or i - left <= j <= i + right."""
        if min(num_global, left, right) < 0:
            raise ValueError(f"num_global, left and right must not be negative, got {num_global}, {left}, {right}")
        j = torch.arange(seqlen, device=device)
        is_global = j < num_global
        columns = [(j + left + 1).clamp(min=num_global), seqlen, num_global, (j - right).clamp(min=num_global)]
        columns = [torch.where(is_global, seqlen, column) for column in columns]
        columns = _without_empty(columns, seqlen)
        return cls(_bounds(columns, seqlen, batch), False, seqlen)

    @classmethod
    def prefix_lm(cls, seqlen: int, prefix: int | Sequence[int], *, device: Device = None) -> Self:
        """visible = j < prefix or j <= i: the prefix sees itself both ways. One length, or one per batch row."""
        j = torch.arange(seqlen, device=device)
        prefix_B1 = torch.tensor([prefix] if isinstance(prefix, int) else list(prefix), device=device)[:, None]
        upper_end = torch.where(j < prefix_B1, 0, j)
        bounds = torch.stack([torch.full_like(upper_end, seqlen), upper_end], dim=-1)
        return cls(bounds[:, None].to(torch.int32), False, seqlen)

    @classmethod
    def chunked_causal(
        cls, seqlen_q: int, seqlen_k: int | None = None, *, chunk: int, batch: int = 1, device: Device = None
    ) -> Self:
        """Llama 4: visible = j <= p and p // chunk = j // chunk."""
        _at_least_1("chunk", chunk)
        row_K = _own_rows(seqlen_q, seqlen_k, device)
        j = torch.arange(len(row_K), device=device)
        return cls(_bounds([(j // chunk + 1) * chunk + row_K - j], seqlen_q, batch), True, seqlen_q)

    @classmethod
    def block_causal(
        cls, seqlen_q: int, seqlen_k: int | None = None, *, block: int, batch: int = 1, device: Device = None
    ) -> Self:
        """Frames of a video: visible = p // block >= j // block (both ways inside a block)."""
        _at_least_1("block", block)
        row_K = _own_rows(seqlen_q, seqlen_k, device)
        j = torch.arange(len(row_K), device=device)
        columns = [torch.full_like(j, seqlen_q), j // block * block + row_K - j]
        return cls(_bounds(columns, seqlen_q, batch), False, seqlen_q)

    @classmethod
    def padding(
        cls,
        lengths: Sequence[int] | Tensor,
        seqlen: int,
        *,
        side: str = "right",
        causal: bool = True,
        device: Device = None,
    ) -> Self:
        """visible = i and j are both real tokens, and j <= i if causal.

        Args:
            lengths: number of real tokens of each batch row.
            seqlen: padded length.
            side: where the padding is, "right" or "left".
        """
        num_real = torch.as_tensor(lengths, device=device).long().reshape(-1, 1)
        if bool(((num_real < 0) | (num_real > seqlen)).any()):
            raise ValueError(f"lengths must be from 0 to seqlen ({seqlen}), got {num_real.flatten().tolist()}")
        if side not in ("right", "left"):
            raise ValueError(f'side must be "right" or "left", got {side!r}')
        j = torch.arange(seqlen, device=num_real.device)
        first, end = (0 * num_real, num_real) if side == "right" else (seqlen - num_real, 0 * num_real + seqlen)
        is_real = (j >= first) & (j < end)
        columns = [torch.where(is_real, end, 0)]
        if not causal:
            columns.append(torch.where(is_real, first, 0))
        return cls(torch.stack(columns, dim=-1)[:, None].to(torch.int32), causal, seqlen)

    @classmethod
    def key_eviction(cls, evicted_at: Tensor) -> Self:
        """A cache that drops keys: visible = j <= i < evicted_at[j]; int [B, Hm, S], with S for keys that stay."""
        if evicted_at.dim() != 3 or evicted_at.is_floating_point():
            raise ValueError(
                f"evicted_at must be int [batch, heads, sequence], got {evicted_at.dtype} {list(evicted_at.shape)}"
            )
        return cls(evicted_at[..., None].contiguous(), True, evicted_at.shape[2])

    @classmethod
    def qk_sparse(
        cls, seqlen: int, dropped: Sequence[tuple[int, int]], *, batch: int = 1, device: Device = None
    ) -> Self:
        """visible = j <= i unless i and j lie in one dropped range [begin, end); the ranges are disjoint."""
        j = torch.arange(seqlen, device=device)
        begin, end = (torch.full_like(j, seqlen) for _ in range(2))
        reached = 0
        for a, b in sorted(dropped):
            if not reached <= a <= b <= seqlen:
                raise ValueError(f"dropped ranges must be disjoint and inside [0, {seqlen}), got {list(dropped)}")
            begin[a:b], end[a:b], reached = j[a:b], b, b
        return cls(_bounds([begin, end], seqlen, batch), True, seqlen)

    @classmethod
    def hash_sparse(cls, query_buckets: Tensor, key_buckets: Tensor) -> Self:
        """Reformer-like buckets: visible = same bucket and the query's position >= the key's.

        Rows and columns are those of q and k *after* each was stably sorted by its bucket
        (``torch.argsort(buckets, stable=True)``).

        Args:
            query_buckets: int [B, Hm, S], the bucket of each query, in order of position.
            key_buckets: int [B, Hm, S].
        """
        if query_buckets.shape != key_buckets.shape or query_buckets.dim() != 3:
            raise ValueError(
                "query_buckets and key_buckets must have one shape [batch, heads, sequence], got "
                f"{list(query_buckets.shape)} and {list(key_buckets.shape)}"
            )
        seqlen = query_buckets.shape[2]
        position = torch.arange(seqlen, device=query_buckets.device)
        # Bucket and position in one number: sorted rows of a bucket are a run in order of position.
        query_rank = (query_buckets.long() * seqlen + position).sort(-1).values
        key_rank = (key_buckets.long() * seqlen + position).sort(-1).values
        first_seen = torch.searchsorted(query_rank, key_rank)
        end = torch.searchsorted(query_rank, (key_rank // seqlen + 1) * seqlen)
        return cls(torch.stack([end, first_seen], dim=-1), False, seqlen)

    @classmethod
    def block_diffusion(cls, seqlen: int, *, block: int, batch: int = 1, device: Device = None) -> Self:
        """Training of block diffusion: rows and keys are [S noised tokens, S clean tokens].

        A noised token sees its own noised block and all earlier clean blocks; a clean token sees the clean blocks up
        to its own.
        """
        _at_least_1("block", block)
        j = torch.arange(2 * seqlen, device=device)
        is_clean = j >= seqlen
        begin = j % max(seqlen, 1) // block * block
        end = (begin + block).clamp(max=seqlen)
        columns = [
            torch.where(is_clean, seqlen, end),
            torch.where(is_clean, seqlen + begin, 2 * seqlen),
            torch.zeros_like(j),
            torch.where(is_clean, end, begin),
        ]
        return cls(_bounds(_without_empty(columns, 2 * seqlen), 2 * seqlen, batch), False, 2 * seqlen)


def _own_rows(seqlen_q: int, seqlen_k: int | None, device: Device) -> Tensor:
    """The row that stands at each key's position: int64 [Sk], negative for keys before the first row."""
    seqlen_k = seqlen_q if seqlen_k is None else seqlen_k
    return torch.arange(seqlen_k, device=device) - (seqlen_k - seqlen_q)


def _bounds(columns: list[Tensor], seqlen_q: int, batch: int) -> Tensor:
    """int32 [B, 1, Sk, n], clamped to the rows."""
    return torch.stack(columns, dim=-1).clamp(0, seqlen_q).to(torch.int32).expand(batch, 1, -1, -1).contiguous()


def _without_empty(columns: list[Tensor], seqlen_q: int) -> list[Tensor]:
    """Empty intervals of four columns as (Sq, Sq), which keeps them out of the extremes of a block of keys."""
    for a in (0, 2):
        is_empty = columns[a] >= columns[a + 1]
        columns[a : a + 2] = [torch.where(is_empty, seqlen_q, x) for x in columns[a : a + 2]]
    return columns


def _at_least_1(name: str, size: int) -> None:
    if size < 1:
        raise ValueError(f"{name} must be at least 1, got {size}")
