"""Which rank of a context-parallel group holds which rows of a sequence, and what that costs.

    plan = plan_context_parallel(mask, mesh.group("context"))
    out = attend_context_parallel(*(plan.shard(x, dim=1) for x in (query, key, value)), mask, plan)

Legend: S sequence, C chunks, R ranks, L rows of one rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from oarlock.attention.context_parallel import balance, costs
from oarlock.attention.context_parallel.exchange import KeyExchange, build_exchange, traffic
from oarlock.attention.context_parallel.picture import draw
from oarlock.attention.masks import ColumnMask
from oarlock.attention.picture import Picture
from oarlock.digest import Digest64, digest64
from oarlock.ranks import JobError, Ranks

CHUNK = 128
"""Rows of a chunk, if that gives every rank 8 to 31 chunks."""
_FEW_CHUNKS, _MANY_CHUNKS, _MOST_CHUNKS = 8, 16, 2048
LEAST_CHUNK = 16
"""Rows of a chunk at least, unless asked for."""


def plan_context_parallel(
    mask: ColumnMask,
    group: dist.ProcessGroup | DeviceMesh | None = None,
    *,
    num_ranks: int | None = None,
    chunk: int | None = None,
    method: str = "auto",
    pad_to_equal: bool = False,
) -> ContextPlan:
    """Deal the rows of a sequence out to the ranks of a group: equal rows, equal work, and few keys to send.

    The sequence is cut into chunks of rows. Ranks get equally many, up to one, with equal numbers of visible pairs.
    The same call on every rank gives the same plan; with a group, a digest of it is compared.

    Args:
        mask: of the whole sequence, as many keys as rows; the same on every rank.
        group: the ranks: a process group, or one axis of a DeviceMesh (``mesh["context"]``). None: a plan to look at,
            or for one process.
        num_ranks: without a group, the number of ranks to plan for; default 1.
        chunk: rows of a chunk. None: 128, or 2^n times that, so that every rank gets 8 to 31 chunks (but at least 16
            rows, and at most 2048 chunks in all). More chunks balance no better, ask for more keys and take longer.
        method: "auto", "contiguous", "dualchunk" (zigzag), "lpt" or "affinity"; see
            :mod:`oarlock.attention.context_parallel.balance`.
        pad_to_equal: pad every rank's rows to the length of the longest, for static shapes.

    Raises:
        ValueError: a mask with unlike numbers of rows and keys, or a value out of range.
        JobError: the ranks have unlike plans, because their masks or arguments differ.
    """
    if mask.seqlen_q != mask.seqlen_k:
        raise ValueError(
            f"context parallelism shards rows and keys alike; the mask has {mask.seqlen_q} rows and "
            f"{mask.seqlen_k} keys"
        )
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(f'the DeviceMesh has the axes {group.mesh_dim_names}; pass one of them: mesh["context"]')
        group = group.get_group()
    ranks = Ranks(group) if group is not None else None
    if ranks is not None and num_ranks not in (None, ranks.size):
        raise ValueError(f"num_ranks = {num_ranks}, the group has {ranks.size}; leave it out")
    size = ranks.size if ranks is not None else 1 if num_ranks is None else num_ranks
    if size < 1 or (chunk is not None and chunk < 1):
        raise ValueError(f"num_ranks = {size}, chunk = {chunk}: must be at least 1")
    chunk = _default_chunk(mask.seqlen_q, size) if chunk is None else chunk
    seqlen = mask.seqlen_q
    chunks = balance.Chunks(
        costs.chunk_sizes(seqlen, chunk), costs.chunk_costs(mask, chunk), lambda: costs.chunk_needs(mask, chunk)
    )
    owner_C = balance.assign(chunks, size, method)
    rank = 0 if ranks is None else ranks.rank
    plan = ContextPlan(mask, size, rank, chunk, tuple(owner_C.tolist()), method, pad_to_equal, group)
    if ranks is not None:
        digests = ranks.gather(plan.digest)
        if others := [r for r, other in enumerate(digests) if other != digests[0]]:
            raise JobError(
                f"ranks {others} of the context-parallel group have another plan than rank 0: all must pass the mask "
                "of the same whole sequences (not their own rows') and the same options"
            )
    return plan


def _default_chunk(seqlen: int, num_ranks: int) -> int:
    chunk = CHUNK
    while chunk > LEAST_CHUNK and chunk * _FEW_CHUNKS * num_ranks > seqlen:
        chunk //= 2
    while chunk * 2 * _MANY_CHUNKS * num_ranks <= seqlen or chunk * _MOST_CHUNKS < seqlen:
        chunk *= 2
    return chunk


@dataclass(frozen=True, eq=False)
class ContextPlan:
    """Who holds which rows; made by :func:`plan_context_parallel`. Usable with any mask of the same length."""

    mask: ColumnMask
    """The mask that it balances."""
    num_ranks: int
    rank: int
    """This process's place in the group; 0 without one."""
    chunk: int
    owner: tuple[int, ...]
    """Rank of each chunk of ``chunk`` rows."""
    method: str
    pad_to_equal: bool
    group: dist.ProcessGroup | None = field(repr=False)
    _memo: dict[Any, Any] = field(init=False, repr=False, default_factory=dict)
    # Not kept on the mask, which would then hold the plan that holds the mask.
    _exchanges: WeakKeyDictionary[ColumnMask, dict[int, KeyExchange]] = field(
        init=False, repr=False, default_factory=WeakKeyDictionary
    )

    # ---- who holds what ----------------------------------------------------------------------------------------------

    @property
    def seqlen(self) -> int:
        """Rows S of the whole sequence."""
        return self.mask.seqlen_q

    def rows(self, rank: int | None = None) -> Tensor:
        """The rows of a rank (default: this one), ascending: int64, on the CPU; without padding."""
        return torch.from_numpy(self._rows()[self._rank(rank)])

    def length(self, rank: int | None = None) -> int:
        """Rows L of a rank's tensors, padding included."""
        rows = self._rows()
        return max(map(len, rows)) if self.pad_to_equal else len(rows[self._rank(rank)])

    @property
    def position_ids(self) -> Tensor:
        """The place of this rank's rows in the sequence: int64 [L] on the mask's device; 0 for padding."""
        return self.shard(torch.arange(self.seqlen, device=self.mask.device), 0)

    @property
    def digest(self) -> str:
        """A hash of all that the ranks must agree on."""
        mask = self.mask
        facts = (self.seqlen, self.num_ranks, self.chunk, self.owner, self.pad_to_equal, mask.causal)
        return Digest64().update(repr((*facts, digest64(mask.bounds))).encode()).hexdigest()

    # ---- tensors -----------------------------------------------------------------------------------------------------

    def shard(self, tensor: Tensor, dim: int, *, rank: int | None = None, fill: float = 0) -> Tensor:
        """The rows of a rank (default: this one) of a whole tensor, in its order; differentiable.

        Args:
            tensor: S long in ``dim``.
            fill: value of the rows of padding.
        """
        if tensor.shape[dim] != self.seqlen:
            raise ValueError(f"dim {dim} of {list(tensor.shape)} must be the whole sequence of {self.seqlen} rows")
        own = self._cached(("rows", self._rank(rank), tensor.device), lambda: self.rows(rank).to(tensor.device))
        part = tensor.index_select(dim, own)
        if padding := self.length(rank) - len(own):
            after = [0, 0] * (tensor.dim() - 1 - dim % tensor.dim()) + [0, padding]
            part = F.pad(part, after, value=fill)
        return part

    @torch.no_grad()
    def unshard(self, tensor: Tensor | Sequence[Tensor], dim: int) -> Tensor:
        """The whole tensor from every rank's rows; no gradient passes.

        Args:
            tensor: L long in ``dim``; all ranks of the group call it. Or the parts of all ranks in order.
        """
        if isinstance(tensor, Tensor):
            if tensor.shape[dim] != self.length():
                raise ValueError(f"dim {dim} of {list(tensor.shape)} must be the {self.length()} rows of this rank")
            parts = self._gather(tensor.movedim(dim, 0).contiguous())
        else:
            parts = [part.movedim(dim, 0) for part in tensor]
        if len(parts) != self.num_ranks:
            raise ValueError(f"the plan is for {self.num_ranks} ranks, got {len(parts)} parts; pass those of all ranks")
        whole = parts[0].new_empty(self.seqlen, *parts[0].shape[1:])
        for rank, part in enumerate(parts):
            rows = self.rows(rank).to(part.device)
            whole[rows] = part[: len(rows)]
        return whole.movedim(0, dim)

    def _gather(self, part: Tensor) -> list[Tensor]:
        if self.group is None:
            return [part]
        longest = max(self.length(rank) for rank in range(self.num_ranks))
        padded = part.new_zeros(longest, *part.shape[1:])
        padded[: len(part)] = part
        gathered = [torch.empty_like(padded) for _ in range(self.num_ranks)]
        dist.all_gather(gathered, padded, group=self.group)
        return gathered

    # ---- what it costs -----------------------------------------------------------------------------------------------

    def pairs(self, mask: ColumnMask | None = None) -> Tensor:
        """Visible pairs that each rank computes, over all batch rows and heads of a mask: int64 [R]."""
        cost_C = costs.chunk_costs(self._other(mask), self.chunk)
        load = np.zeros(self.num_ranks, np.int64)
        np.add.at(load, self._owner(), cost_C)
        return torch.from_numpy(load)

    @property
    def balance(self) -> float:
        """Visible pairs of the busiest rank / mean over the ranks, at least 1; 1 if there are none."""
        pairs = self.pairs()
        return float(pairs.max()) * self.num_ranks / float(pairs.sum()) if pairs.sum() else 1.0

    def kv_rows(self, mask: ColumnMask | None = None) -> Tensor:
        """Keys that each rank (first dim) gets from each other, over all batch rows of a mask: int64 [R, R]."""
        mask = self._other(mask)
        return torch.from_numpy(traffic(self._runs(mask), self._owner(), self.chunk, self.num_ranks))

    def kv_share(self, mask: ColumnMask | None = None) -> float:
        """Keys sent / keys that an all-gather would send, (R - 1) S per batch row; 0 for one rank."""
        mask = self._other(mask)
        everything = (self.num_ranks - 1) * self.seqlen * mask.batch
        return int(self.kv_rows(mask).sum()) / everything if everything else 0.0

    def kv_bytes(
        self,
        num_key_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        dtype: torch.dtype = torch.bfloat16,
        mask: ColumnMask | None = None,
    ) -> Tensor:
        """Bytes of keys and values that each rank gets in one forward, and sends as gradients in one backward.

        Returns:
            int64 [R], for the batch rows of the mask.
        """
        width = num_key_heads * (head_dim + (head_dim if value_dim is None else value_dim))
        return self.kv_rows(mask).sum(1) * width * dtype.itemsize

    def exchange(self, mask: ColumnMask | None = None, rank: int | None = None) -> KeyExchange:
        """What a rank (default: this one) sends, gets and computes under a mask; made once for each mask that lives."""
        mask, rank = self._other(mask), self._rank(rank)
        known = self._exchanges.setdefault(mask, {})
        if rank not in known:
            known[rank] = build_exchange(mask, self._runs(mask), self._owner(), self.chunk, self._rows(), rank)
        return known[rank]

    def plot(self, path: str | Path | None = None, *, title: str = "") -> Picture:
        """A picture (SVG) for a notebook or ``path``: the mask in the colours of the ranks, and the ranks' shares."""
        drawn = draw(self, title)
        if path is not None:
            Path(path).write_text(drawn)
        return drawn

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _cached(self, key: Any, make: Any) -> Any:
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def _owner(self) -> np.ndarray:
        return self._cached("owner", lambda: np.array(self.owner, np.int64))

    def _rows(self) -> list[np.ndarray]:
        owner_S = np.repeat(self._owner(), self.chunk)[: self.seqlen]
        return self._cached("all rows", lambda: [np.flatnonzero(owner_S == r) for r in range(self.num_ranks)])

    def _runs(self, mask: ColumnMask) -> costs.KeyRuns:
        return mask.cached(("key runs", self.chunk), lambda: costs.key_runs(mask, self.chunk))

    def _rank(self, rank: int | None) -> int:
        if rank is None:
            return self.rank
        if not 0 <= rank < self.num_ranks:
            raise ValueError(f"rank = {rank}: must lie in 0 .. {self.num_ranks - 1}")
        return rank

    def _other(self, mask: ColumnMask | None) -> ColumnMask:
        if mask is None:
            return self.mask
        if (mask.seqlen_q, mask.seqlen_k) != (self.seqlen, self.seqlen):
            raise ValueError(
                f"the plan is for a sequence of {self.seqlen}, the mask has {mask.seqlen_q} rows and {mask.seqlen_k} "
                "keys; pass the mask of the whole sequence"
            )
        return mask
