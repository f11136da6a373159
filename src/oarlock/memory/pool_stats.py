"""What a pool tells of itself: its blocks and its figures."""

from __future__ import annotations

import dataclasses
from typing import Literal

State = Literal["live", "free", "hole", "held", "lost"]


@dataclasses.dataclass(frozen=True)
class Block:
    """A piece of the pool's address space.

    Attributes:
        addr: its first address.
        size: bytes, a multiple of 512.
        requested: bytes that were asked for; 0 unless live or held.
        stream: of the allocation.
        mapped_pages: pages with memory that it lies on.
        tag: its pages hold blocks of this tag only.
        pins: how often it is pinned.
        state: "live"; "free"; "hole", without memory; "held", freed but pinned; "lost", where the driver failed.
        blocked: events of streams are outstanding.
    """

    addr: int
    size: int
    requested: int
    stream: int
    mapped_pages: int
    tag: int
    pins: int
    state: State
    blocked: bool


@dataclasses.dataclass(frozen=True)
class PoolStats:
    """Figures of a pool; bytes of allocations count rounded up to 512.

    Attributes:
        capacity_bytes, page_bytes: as opened, whole pages.
        reserved_bytes, peak_reserved_bytes: pages that the device has given, now and at most.
        spare_bytes: of those, mapped nowhere.
        live_bytes, peak_live_bytes: allocations, now and at most; requested_bytes: the same, not rounded.
        free_bytes: mapped and nobody's; of those stranded_bytes lie in pages that something else lies on too, and
            blocked_bytes wait for events of streams.
        pinned_bytes: pinned allocations; held_bytes: of those, the freed ones.
        asleep_bytes: allocations whose tag is asleep.
        lost_bytes: pages that the driver would neither give nor take back.
        num_live, num_free, num_holes: blocks.
        num_allocations, num_frees: calls so far.
        num_moves: requests that moved pages; moved_pages: how many pages they moved.
        num_rollbacks: transactions that the driver broke off.
        num_not_created: pages that the device refused below the capacity.
        num_pressure_calls, num_waits, num_out_of_memory: calls of the pressure callback, waits for an event, failures.
        num_ordered: requests whose stream was made to wait for other streams, where pages would have moved else.
    """

    capacity_bytes: int
    page_bytes: int
    reserved_bytes: int
    peak_reserved_bytes: int
    spare_bytes: int
    live_bytes: int
    peak_live_bytes: int
    requested_bytes: int
    free_bytes: int
    stranded_bytes: int
    blocked_bytes: int
    pinned_bytes: int
    held_bytes: int
    asleep_bytes: int
    lost_bytes: int
    num_live: int
    num_free: int
    num_holes: int
    num_allocations: int
    num_frees: int
    num_moves: int
    moved_pages: int
    num_rollbacks: int
    num_not_created: int
    num_pressure_calls: int
    num_waits: int
    num_out_of_memory: int
    num_ordered: int
