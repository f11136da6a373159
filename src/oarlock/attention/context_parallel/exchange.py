"""Which keys travel between the ranks under one mask, and the masks of what a rank then computes.

A rank holds the same rows of queries and keys. It computes its rows against its own keys, and against the keys of
other ranks that at least one of its rows sees: these and no others are sent to it, ordered by sender, then batch row,
then key. Both ends derive the lists from plan and mask alone, so nothing is negotiated.

Legend: G batch rows of the mask (1 or B), Hm mask heads, S sequence, L rows of this rank, R ranks, N runs of keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from oarlock.attention.context_parallel.costs import KeyRuns
from oarlock.attention.masks import ColumnMask

GATHER_SHARE = 0.9
"""From this share of all keys on, everything is gathered instead: one dense collective, nothing to pick out."""


@dataclass(frozen=True, eq=False)
class KeyExchange:
    """The part of one rank."""

    local_mask: ColumnMask
    """Its rows against its own keys: [G, Hm, L, n]."""
    remote_mask: ColumnMask
    """Its rows against the keys that it gets, batch rows padded with hidden keys: [G, Hm, num_remote, n]."""
    send_rows: Tensor
    """int64: the keys to send, as rows of [G * L], ordered by receiver."""
    send_counts: list[int]
    recv_counts: list[int]
    """Per rank of the group."""
    slots: Tensor | None
    """int64: place of each received key in [G * num_remote]; None if they are in place."""
    gathered_rows: Tensor | None
    """int64: the keys to get as rows of all ranks' [R * G * longest]; None where they come by all_to_all."""
    longest: int
    """Rows of the rank that has most."""
    is_silent: bool
    """No rank needs anything from another."""

    @property
    def num_remote(self) -> int:
        """Keys that a batch row gets at most."""
        return self.remote_mask.seqlen_k


def traffic(runs: KeyRuns, owner_C: np.ndarray, chunk: int, num_ranks: int) -> np.ndarray:
    """Keys that go from one rank (second dim) to another (first dim): int64 [R, R], 0 on the diagonal."""
    needed_RN, owner_N = runs.needed(owner_C, num_ranks), owner_C[runs.begin // chunk]
    sizes_NR = np.zeros((len(owner_N), num_ranks), np.int64)
    sizes_NR[np.arange(len(owner_N)), owner_N] = runs.sizes
    keys = needed_RN.astype(np.int64) @ sizes_NR
    np.fill_diagonal(keys, 0)
    return keys


def build_exchange(
    mask: ColumnMask, runs: KeyRuns, owner_C: np.ndarray, chunk: int, rows: list[np.ndarray], rank: int
) -> KeyExchange:
    """The part of ``rank``.

    Args:
        mask: of the whole sequence.
        runs: of this mask.
        owner_C: rank of each chunk of ``chunk`` rows.
        rows: the rows of every rank, ascending.
    """
    num_ranks, device = len(rows), mask.device
    needed_RN, owner_N = runs.needed(owner_C, num_ranks), owner_C[runs.begin // chunk]
    travels_RN = needed_RN & (owner_N != np.arange(num_ranks)[:, None])
    position_S = np.empty(mask.seqlen_k, np.int64)
    for own in rows:
        position_S[own] = np.arange(len(own))

    receiver, run = np.nonzero(travels_RN & (owner_N == rank))
    batch, key, origin = _expand(runs, run)
    send_counts = np.bincount(receiver[origin], minlength=num_ranks)
    send_rows = batch * len(rows[rank]) + position_S[key]

    run = np.flatnonzero(travels_RN[rank])
    batch, key, origin = _expand(runs, run)
    sender = owner_N[run][origin]
    order = np.argsort(sender, kind="stable")
    batch, key, sender = batch[order], key[order], sender[order]
    longest = max(len(own) for own in rows)
    total = int((travels_RN * runs.sizes).sum())
    gathered_rows = None
    if total >= GATHER_SHARE * (num_ranks - 1) * mask.batch * mask.seqlen_k > 0:
        own_length = np.array([len(own) for own in rows])
        gathered_rows = sender * (mask.batch * longest) + batch * own_length[sender] + position_S[key]

    own_rows = torch.from_numpy(rows[rank]).to(device)
    localized = mask.localize(own_rows)
    remote_bounds, slots = _remote(localized, batch, key)
    return KeyExchange(
        local_mask=ColumnMask(localized.bounds[:, :, own_rows], False, len(own_rows)),
        remote_mask=ColumnMask(remote_bounds, False, len(own_rows)),
        send_rows=torch.from_numpy(send_rows).to(device),
        send_counts=send_counts.tolist(),
        recv_counts=np.bincount(sender, minlength=num_ranks).tolist(),
        slots=None if slots is None else torch.from_numpy(slots).to(device),
        gathered_rows=None if gathered_rows is None else torch.from_numpy(gathered_rows).to(device),
        longest=longest,
        is_silent=total == 0,
    )


def _expand(runs: KeyRuns, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Batch row and key of every key of the chosen runs, and the place of its run in ``chosen``."""
    sizes = runs.sizes[chosen]
    origin = np.repeat(np.arange(len(chosen)), sizes)
    within = np.arange(len(origin)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return runs.batch[chosen][origin], runs.begin[chosen][origin] + within, origin


def _remote(localized: ColumnMask, batch: np.ndarray, key: np.ndarray) -> tuple[Tensor, np.ndarray | None]:
    """Bounds [G, Hm, num_remote, n] of the given keys in their order, and their places in [G * num_remote]."""
    bounds, device = localized.bounds, localized.device
    columns = torch.from_numpy(key).to(device)
    if localized.batch == 1:
        return bounds[:, :, columns], None
    counts = np.bincount(batch, minlength=localized.batch)
    num_remote = int(counts.max())
    by_batch = np.argsort(batch, kind="stable")
    place = np.empty_like(batch)
    place[by_batch] = np.arange(len(batch)) - np.repeat(np.cumsum(counts) - counts, counts)
    # hidden from all rows, in either layout
    padded = bounds.new_full((localized.batch, num_remote, localized.num_heads, bounds.shape[3]), localized.seqlen_q)
    padded[..., 0] = 0
    rows = torch.from_numpy(batch).to(device)
    padded[rows, torch.from_numpy(place).to(device)] = bounds[rows, :, columns]
    return padded.transpose(1, 2).contiguous(), batch * num_remote + place
