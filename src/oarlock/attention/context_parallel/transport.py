"""Keys and values on their way to the ranks that need them, and their gradients on the way back.

Rows travel as bytes, so every backend of torch.distributed takes every dtype. Gradients are sent in the dtype of the
keys and added up in float32 (float64 for float64), rank by rank in order, so that equal inputs give equal bits.

Legend: B batch, G batch rows of the mask (1 or B), L rows of this rank, Hk key heads, D and Dv head dims of K and V.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from oarlock.attention.context_parallel.exchange import KeyExchange

Group = dist.ProcessGroup | None


@dataclass(frozen=True)
class Travelling:
    """Rows that a collective is bringing."""

    rows: Tensor
    """[rows, width]; not to be read before ``wait``."""
    work: dist.Work | None

    def wait(self) -> Tensor:
        if self.work is not None:
            self.work.wait()
        return self.rows


class KeySender:
    """One exchange of keys and values, and later of their gradients.

    Args:
        exchange: which keys.
        group: the ranks.
        key: [B, L, Hk, D] and value [B, L, Hk, Dv] of this rank: shapes, dtype and device of all.
    """

    def __init__(self, exchange: KeyExchange, group: Group, key: Tensor, value: Tensor) -> None:
        self.exchange, self.group = exchange, group
        self.batch = exchange.local_mask.batch  # G
        self.shapes = [(x.shape[0] // self.batch, *x.shape[2:]) for x in (key, value)]

    def send(self, key: Tensor, value: Tensor) -> Travelling:
        """Start the exchange."""
        exchange = self.exchange
        if exchange.gathered_rows is None:
            packed = torch.cat([self._pack(x).index_select(0, exchange.send_rows) for x in (key, value)], dim=1)
            return self._all_to_all(packed, exchange.send_counts, exchange.recv_counts)
        packed = torch.cat([self._pack(x) for x in (key, value)], dim=1)
        own = packed.new_zeros(self.batch * exchange.longest, packed.shape[1])
        own[: len(packed)] = packed
        rows = own.new_empty(len(exchange.send_counts) * len(own), own.shape[1])
        parts = list(rows.view(torch.uint8).split(len(own)))
        return Travelling(rows, dist.all_gather(parts, own.view(torch.uint8), group=self.group, async_op=True))

    def receive(self, travelling: Travelling) -> tuple[Tensor, Tensor]:
        """Wait; the keys [B, num_remote, Hk, D] and values of others that this rank's rows see."""
        rows = travelling.wait()
        if self.exchange.gathered_rows is not None:
            rows = rows.index_select(0, self.exchange.gathered_rows)
        key, value = (
            self._unpack(x, shape) for x, shape in zip(rows.split(self._widths(), dim=1), self.shapes, strict=True)
        )
        return key, value

    def send_gradients(self, grad_key: Tensor, grad_value: Tensor) -> Travelling:
        """Start to return the gradients of what was received."""
        slots = self.exchange.slots
        packed = [self._pack(x) for x in (grad_key, grad_value)]
        if slots is not None:
            packed = [x.index_select(0, slots) for x in packed]
        return self._all_to_all(torch.cat(packed, dim=1), self.exchange.recv_counts, self.exchange.send_counts)

    def add_gradients(self, travelling: Travelling, grad_key: Tensor, grad_value: Tensor) -> tuple[Tensor, Tensor]:
        """Wait; the given gradients, which may be overwritten, plus those that the other ranks have found."""
        exact = torch.promote_types(grad_key.dtype, torch.float32)
        totals = [self._pack(x).to(exact) for x in (grad_key, grad_value)]
        shares = travelling.wait().split(self._widths(), dim=1)
        counts = self.exchange.send_counts
        for total, share in zip(totals, shares, strict=True):
            # within one rank's share every row occurs once: no order to depend on
            parts = zip(self.exchange.send_rows.split(counts), share.split(counts), strict=True)
            for rows, part in parts:
                total.index_add_(0, rows, part.to(exact))
        length = grad_key.shape[1]
        grad_key, grad_value = (
            x.to(grad_key.dtype).unflatten(1, shape).unflatten(0, (self.batch, length)).transpose(1, 2).flatten(0, 1)
            for x, shape in zip(totals, self.shapes, strict=True)
        )
        return grad_key, grad_value

    def _all_to_all(self, packed: Tensor, counts: list[int], recv_counts: list[int]) -> Travelling:
        rows = packed.new_empty(sum(recv_counts), packed.shape[1])
        arguments = (rows.view(torch.uint8), packed.view(torch.uint8), recv_counts, counts)
        return Travelling(rows, dist.all_to_all_single(*arguments, group=self.group, async_op=True))

    def _widths(self) -> list[int]:
        return [shape[0] * shape[1] * shape[2] for shape in self.shapes]

    def _pack(self, x_BLHD: Tensor) -> Tensor:
        """One row per batch row of the mask and key: [G * L, B / G * Hk * D]."""
        return x_BLHD.unflatten(0, (self.batch, -1)).transpose(1, 2).flatten(0, 1).flatten(1)

    def _unpack(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        """[B, num_remote, Hk, D] from received rows."""
        slots, num_remote = self.exchange.slots, self.exchange.num_remote
        if slots is not None:
            rows = rows.new_zeros(self.batch * num_remote, rows.shape[1]).index_copy_(0, slots, rows)
        return rows.unflatten(1, shape).unflatten(0, (self.batch, num_remote)).transpose(1, 2).flatten(0, 1)
