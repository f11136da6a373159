"""Constructors of masks over packed documents and trees; they are class methods of ``ColumnMask``.

Legend: B batch, S sequence, Sq query rows, Sk key columns; visible(i, j) is the defining predicate.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

Device = torch.device | str | None
Lengths = Sequence[int] | Sequence[Sequence[int]]
"""Of documents in order, for all batch rows or one list per batch row; each list sums to the sequence length."""


class DocumentMasks:
    """Masks of several documents in one sequence."""

    if TYPE_CHECKING:

        def __init__(self, bounds: Tensor, causal: bool, seqlen_q: int) -> None: ...

    @classmethod
    def causal_document(cls, lengths: Lengths, *, window: int | None = None, device: Device = None) -> Self:
        """Packed documents, causal inside each: visible = j <= i and same document (and i - j < window).

        Args:
            lengths: lengths of the documents in order, for all batch rows or one list per batch row; each list sums
                to the sequence length.
            window: if given, a row sees only the last ``window`` of these keys, itself included.
            device: where the bounds live.

        Raises:
            ValueError: negative lengths, rows of different total length, or a window below 1.
        """
        _, end_BS = document_borders(lengths)
        return cls(_causal_ends(end_BS, window)[:, None, :, None].to(device), True, end_BS.shape[1])

    @classmethod
    def document(cls, lengths: Lengths, *, device: Device = None) -> Self:
        """Packed documents, bidirectional inside each; ``lengths`` as in :meth:`causal_document`."""
        begin_BS, end_BS = document_borders(lengths)
        return cls(torch.stack([end_BS, begin_BS], dim=-1)[:, None].to(device), False, end_BS.shape[1])

    @classmethod
    def from_position_ids(cls, position_ids: Tensor, *, window: int | None = None) -> Self:
        """Causal documents from int [B, S]: a document begins where a position does not follow the one before it."""
        if position_ids.dim() != 2 or position_ids.is_floating_point():
            raise ValueError(f"position_ids must be int [batch, sequence], got {list(position_ids.shape)}")
        seqlen = position_ids.shape[1]
        starts = torch.ones_like(position_ids, dtype=torch.bool)
        starts[:, 1:] = position_ids.diff(dim=1) != 1
        index_S = torch.arange(seqlen, device=position_ids.device)
        # The end of a document is the next start after it: a minimum over what follows.
        next_start = torch.where(starts, index_S, seqlen)[:, 1:]
        next_start = torch.cat([next_start, torch.full_like(position_ids[:, :1], seqlen)], dim=1)[:, :seqlen]
        end_BS = next_start.flip(1).cummin(1).values.flip(1)
        return cls(_causal_ends(end_BS, window)[:, None, :, None], True, seqlen)

    @classmethod
    def from_cu_seqlens(
        cls,
        cu_seqlens_q: Tensor | Sequence[int],
        cu_seqlens_k: Tensor | Sequence[int] | None = None,
        *,
        causal: bool = True,
        window: int | None = None,
        device: Device = None,
    ) -> Self:
        """Packed documents by cumulative lengths, with as many rows as keys or not (a cache per document).

        Document d has the rows [cu_seqlens_q[d], cu_seqlens_q[d + 1]) and the keys of cu_seqlens_k likewise. Causal is
        aligned to the bottom right of each document: its last row sees all its keys.

        Args:
            cu_seqlens_q: [documents + 1], beginning with 0, not falling.
            cu_seqlens_k: the same for keys; None: as ``cu_seqlens_q``.
            causal: also hide later keys.
            window: with ``causal``, see only the last ``window`` keys.
        """
        cu_q = _cumulative("cu_seqlens_q", cu_seqlens_q)
        cu_k = cu_q if cu_seqlens_k is None else _cumulative("cu_seqlens_k", cu_seqlens_k)
        if len(cu_q) != len(cu_k):
            raise ValueError(f"cu_seqlens_q has {len(cu_q) - 1} documents, cu_seqlens_k has {len(cu_k) - 1}")
        if device is None and isinstance(cu_seqlens_q, Tensor):
            device = cu_seqlens_q.device
        if torch.equal(cu_q, cu_k) and causal:
            return cls.causal_document(cu_q.diff().tolist(), window=window, device=device)
        num_rows = int(cu_q[-1])
        num_keys_N = cu_k.diff()
        begin, end = (x.repeat_interleave(num_keys_N) for x in (cu_q[:-1], cu_q[1:]))
        upper = begin
        if causal:
            # The row that stands at the key's position when the ends of the document's rows and keys are aligned.
            own_row = torch.arange(int(cu_k[-1]), device=cu_k.device) + (cu_q[1:] - cu_k[1:]).repeat_interleave(
                num_keys_N
            )
            upper = torch.maximum(begin, own_row)
            if window is not None:
                _check_window(window)
                end = torch.minimum(end, own_row + window)
        elif window is not None:
            raise ValueError("window needs causal=True")
        return cls(torch.stack([end, upper], dim=-1)[None, None].to(device), False, num_rows)

    @classmethod
    def causal_blockwise(cls, lengths: Lengths, *, device: Device = None) -> Self:
        """Each document sees itself, the last one sees all: visible = j <= i and (same document or i in the last)."""
        begin_BS, end_BS = document_borders(lengths)
        seqlen = end_BS.shape[1]
        last_B1 = begin_BS[:, -1:] if seqlen else begin_BS
        is_last = begin_BS == last_B1
        bounds = torch.stack([torch.where(is_last, seqlen, end_BS), torch.where(is_last, seqlen, last_B1)], dim=-1)
        return cls(bounds[:, None].to(device), True, seqlen)

    @classmethod
    def prefix_document(cls, lengths: Lengths, prefixes: Lengths, *, device: Device = None) -> Self:
        """Prefix LM per document: visible = same document and (j in its prefix or j <= i).

        ``prefixes`` has the shape of ``lengths``: how many tokens of each document see each other both ways.
        """
        begin_BS, end_BS = document_borders(lengths)
        prefix_rows, length_rows = _rows(prefixes), _rows(lengths)
        if [len(row) for row in prefix_rows] != [len(row) for row in length_rows]:
            raise ValueError(f"prefixes must have one number per document, got {prefixes} for {lengths}")
        prefix_BS = torch.stack(
            [torch.tensor(p).repeat_interleave(torch.tensor(n)) for p, n in zip(prefix_rows, length_rows, strict=True)]
        )
        j = torch.arange(end_BS.shape[1])
        upper_end = torch.where(j - begin_BS < prefix_BS, begin_BS, j)
        return cls(torch.stack([end_BS, upper_end], dim=-1)[:, None].to(device), False, end_BS.shape[1])

    @classmethod
    def share_question(cls, groups: Sequence[Any], *, device: Device = None) -> Self:
        """Preference training: a prompt and several answers that see the prompt and themselves, but not each other.

        visible = j <= i and same group and (j in the prompt or same answer).

        Args:
            groups: one [prompt, answer, answer, ...] of lengths per group, ``[[6, 5, 4], [9, 7]]``; or a list of such
                lists, one per batch row, which sum to the same length.
        """
        rows = list(groups) if groups and isinstance(groups[0][0], Sequence) else [groups]
        ends_BS = []
        for row in rows:
            ends: list[int] = []
            for group in row:
                if any(length < 0 for length in group):
                    raise ValueError(f"lengths must not be negative, got {list(group)}")
                group_end = len(ends) + sum(group)
                borders = list(accumulate(group, initial=len(ends)))
                for place, length in enumerate(group):
                    ends += [group_end if place == 0 else borders[place + 1]] * length
            ends_BS.append(ends)
        if len({len(ends) for ends in ends_BS}) > 1:
            raise ValueError(f"the batch rows must have the same length, got {[len(ends) for ends in ends_BS]}")
        bounds = torch.tensor(ends_BS, dtype=torch.int32, device=device)
        return cls(bounds[:, None, :, None], True, bounds.shape[1])

    @classmethod
    def tree(cls, parents: Sequence[int] | Sequence[Sequence[int]], *, device: Device = None) -> Self:
        """Shared prefixes, speculative decoding: visible = j is an ancestor of i, or i itself.

        Args:
            parents: the parent of each token, -1 for a root, in pre-order: the tokens of a subtree follow each other.
                One list, or one per batch row.
        """
        rows = _rows(parents)
        if len({len(row) for row in rows}) > 1:
            raise ValueError(f"the batch rows must have the same length, got {[len(row) for row in rows]}")
        ends_BS = [_subtree_ends(row) for row in rows]
        bounds = torch.tensor(ends_BS, dtype=torch.int32, device=device)
        return cls(bounds[:, None, :, None], True, bounds.shape[1])


def document_borders(lengths: Lengths) -> tuple[Tensor, Tensor]:
    """First row and end row of each key's document: two int64 [B, S]."""
    rows = _rows(lengths)
    totals = [sum(row) for row in rows]
    if any(length < 0 for row in rows for length in row):
        raise ValueError(f"lengths must not be negative, got {lengths}")
    if len(set(totals)) > 1:
        raise ValueError(f"the lengths of every batch row must have the same sum, got {totals}")
    begins, ends = [], []
    for row in rows:
        length_N = torch.tensor(row, dtype=torch.int64)
        end_N = length_N.cumsum(0)
        ends.append(end_N.repeat_interleave(length_N))
        begins.append((end_N - length_N).repeat_interleave(length_N))
    return torch.stack(begins), torch.stack(ends)


def _rows(lists: Sequence[int] | Sequence[Sequence[int]]) -> list[list[int]]:
    """One list per batch row."""
    rows = [list(row) for row in lists if isinstance(row, Sequence)]
    return rows if rows and len(rows) == len(lists) else [[int(x) for x in lists]]  # type: ignore[arg-type]


def _check_window(window: int) -> None:
    if window < 1:
        raise ValueError(f"window must be at least 1 (the row's own key), got {window}")


def _causal_ends(end_BS: Tensor, window: int | None) -> Tensor:
    if window is None:
        return end_BS
    _check_window(window)
    return torch.minimum(end_BS, torch.arange(end_BS.shape[1], device=end_BS.device) + window)


def _cumulative(name: str, cu_seqlens: Tensor | Sequence[int]) -> Tensor:
    cu = torch.as_tensor(cu_seqlens, device="cpu").long()
    if cu.dim() != 1 or len(cu) == 0 or cu[0] != 0 or bool((cu.diff() < 0).any()):
        raise ValueError(f"{name} must be one row of cumulative lengths 0, ... that does not fall, got {cu.tolist()}")
    return cu


def _subtree_ends(parents: list[int]) -> list[int]:
    """End of each token's subtree in pre-order."""
    path: list[int] = []
    ends = [len(parents)] * len(parents)
    for token, parent in enumerate(parents):
        while path and path[-1] != parent:
            ends[path.pop()] = token
        if parent != (path[-1] if path else -1):
            raise ValueError(
                f"parents are not in pre-order: token {token} has parent {parent}, whose subtree has ended or not begun"
            )
        path.append(token)
    return ends
