"""Launches the kernels: everything that the backend does on the host.

Legend: B batch, Sq query rows, Sk keys, Hq/Hk query and key heads, Hm mask heads, D and Dv head dims of Q/K and V.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import torch
import triton
from torch import Tensor

from oarlock.attention.backends.triton import tile_lists
from oarlock.attention.backends.triton.forward import forward_kernel
from oarlock.attention.backends.triton.key_gradient import dkv_kernel
from oarlock.attention.backends.triton.query_gradient import delta_kernel, dq_kernel
from oarlock.attention.backends.triton.tile_lists import TileLists
from oarlock.attention.backends.triton.tiles import INTERPRETED, Tiles, candidates, padded
from oarlock.attention.dropout import Dropout
from oarlock.attention.request import Options

LOG2_E = 1.4426950408889634
CACHE_BYTES = 24 * 2**20
"""Keys and values of so many heads are worked on at a time: about half of an H100's second-level cache."""
PROGRAMS_PER_PROCESSOR = 2
_WORD64 = 2**64 - 1


@dataclass(frozen=True)
class Schedule:
    """How the work items are dealt out; the results are the same for all.

    Args:
        programs: the most programs; None: as many as the device holds at once.
        quota: the most items that one program takes; None: no limit. With 1 and a program per item nothing persists.
        reorder: changes the order of the lines of tiles, int32 [planes, lines].
    """

    programs: int | None = None
    quota: int | None = None
    reorder: Callable[[Tensor], Tensor] | None = None


DEFAULT = Schedule()


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    options: Options,
    *,
    tiles: Tiles | None = None,
    schedule: Schedule = DEFAULT,
) -> tuple[Tensor, Tensor]:
    """out [B, Sq, Hq, Dv] and lse [B, Hq, Sq] by the forward kernel, with the given or the usual tiles."""
    batch, seqlen_q, num_heads, _ = query.shape
    out = query.new_empty((batch, seqlen_q, num_heads, value.shape[3]))
    lse = query.new_empty((batch, num_heads, seqlen_q), dtype=torch.float32)
    if out.numel() == 0 or key.shape[1] == 0:
        return out.zero_(), lse.fill_(float("-inf"))
    call = _Call(query, key, value, options, schedule)

    def launch(out: Tensor, tiles: Tiles) -> None:
        lists = tile_lists.lists_of_rows(options.mask, options.block_mask, tiles.rows, tiles.keys)
        queue = call.queue(lists, num_heads, call.heads_at_once)
        arguments = (
            *(call.query, call.key, call.value, out, lse, *call.lists_arguments(lists, queue)),
            *(*call.query.stride(), *call.key.stride(), *call.value.stride()),
            *(*queue.arguments, *call.mask_arguments(lists)),
            *(seqlen_q, key.shape[1], call.scale * LOG2_E, *call.dropout),
        )
        call.launch(forward_kernel, queue, arguments, tiles)

    return call.run("forward", launch, (out,), tiles)[0], lse


def backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    options: Options,
    *,
    tiles: Tiles | None = None,
    schedule: Schedule = DEFAULT,
) -> tuple[Tensor, Tensor, Tensor]:
    """dQ, dK and dV."""
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value))
    if out.numel() == 0 or key.shape[1] == 0 or query.shape[3] == 0:
        return dq.zero_(), dk.zero_(), dv.zero_()
    (_, seqlen_q, num_heads, _), (_, seqlen_k, num_key_heads, _) = query.shape, key.shape
    call = _Call(query, key, value, options, schedule)
    grad_out, lse = call.readable(grad_out), lse.contiguous()
    delta = _delta(call.readable(out), grad_out, grad_lse)
    mask, block_mask = options.mask, options.block_mask
    strides = (*call.query.stride(), *call.key.stride(), *call.value.stride(), *grad_out.stride())

    numbers = (seqlen_q, seqlen_k, call.scale, call.scale * LOG2_E, *call.dropout)
    read = (call.query, call.key, call.value, grad_out, lse, delta)

    def launch_dq(dq: Tensor, tiles: Tiles) -> None:
        lists = tile_lists.lists_of_rows(mask, block_mask, tiles.rows, tiles.keys)
        queue = call.queue(lists, num_heads, call.heads_at_once)
        arguments = (
            *(*read, dq, *call.lists_arguments(lists, queue), *strides),
            *(*queue.arguments, *call.mask_arguments(lists), *numbers),
        )
        call.launch(dq_kernel, queue, arguments, tiles)

    def launch_dkv(dk: Tensor, dv: Tensor, tiles: Tiles) -> None:
        group = max(mask.num_heads // num_key_heads, 1)  # masks of one key head
        lists = tile_lists.lists_of_keys(mask, block_mask, tiles.rows, tiles.keys, group)
        queue = call.queue(lists, num_key_heads, max(call.heads_at_once // call.group, 1))
        num_orders = mask.num_heads // group
        orders = (num_orders if len(lists.order) > num_orders else 0, num_key_heads // num_orders)
        arguments = (
            *(*read, dk, dv, *call.lists_arguments(lists, queue), *strides),
            *(*queue.arguments, *call.mask_arguments(lists), *orders, *numbers),
        )
        call.launch(dkv_kernel, queue, arguments, tiles)

    (dq,) = call.run("dq", launch_dq, (dq,), tiles)
    dk, dv = call.run("dkv", launch_dkv, (dk, dv), tiles)
    return dq.neg_() if call.is_negated else dq, dk, dv


def _delta(out: Tensor, grad_out: Tensor, grad_lse: Tensor | None) -> Tensor:
    """rowsum(dO * O) - dlse: float32 [B, Hq, Sq]."""
    batch, seqlen_q, num_heads, value_dim = out.shape
    delta = out.new_empty((batch, num_heads, seqlen_q), dtype=torch.float32)
    block = 64
    num_tiles = -(-seqlen_q // block)
    kernel: Any = delta_kernel
    with _on(out):
        kernel[(batch * num_heads * num_tiles,)](
            out, grad_out, delta if grad_lse is None else grad_lse.float().contiguous(), delta,
            *out.stride(), *grad_out.stride(), seqlen_q, num_heads, num_tiles,
            HAS_GRAD_LSE=grad_lse is not None, BLOCK_Q=block, VALUE_DIM=value_dim, BLOCK_DV=padded(value_dim),
        )  # fmt: skip
    return delta


def _on(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """Triton launches on the current device; this makes it that of a tensor."""
    if INTERPRETED:
        # As on a device, a NaN comes without a warning.
        return numpy.errstate(invalid="ignore", over="ignore")
    return torch.get_device_module(x.device).device(x.device)


_fits: dict[tuple, int] = {}
"""Which of the candidates was the first to fit the device, per kernel, dims and dtype."""


@dataclass(frozen=True)
class _Queue:
    """The work items of a launch."""

    num_items: int
    num_programs: int
    arguments: tuple[int, ...]


class _Call:
    """What the kernels of one call have in common."""

    def __init__(self, query: Tensor, key: Tensor, value: Tensor, options: Options, schedule: Schedule) -> None:
        # The kernels scale before they subtract the maximum, which needs a scale that is not negative.
        self.is_negated = options.scale < 0
        self.query, self.key, self.value = (self.readable(x) for x in (query, key, value))
        if self.is_negated:
            self.query = -self.query
        self.scale = abs(options.scale)
        self.options = options
        self.schedule = schedule
        self.dtype = query.dtype
        self.group = query.shape[2] // key.shape[2]
        self.dropout = (0, 0, 0, 1.0) if options.dropout is None else _dropout_arguments(options.dropout)
        head_bytes = key.shape[1] * (key.shape[3] + value.shape[3]) * key.element_size()
        self.heads_at_once = max(CACHE_BYTES // head_bytes, 1) * self.group

    def readable(self, x: Tensor) -> Tensor:
        """The interpreter multiplies bfloat16 matrices as if they held integers; it gets float32."""
        return x.float() if INTERPRETED and x.dtype == torch.bfloat16 else x

    def run(
        self, kernel: str, launch: Callable[..., None], results: tuple[Tensor, ...], tiles: Tiles | None
    ) -> tuple[Tensor, ...]:
        """Launches with the given tiles, or with the first of the candidates that fit the device."""
        block_d = max(padded(self.query.shape[3]), padded(self.value.shape[3]))
        options = [tiles] if tiles is not None else candidates(kernel, block_d, self.query.dtype)
        key = (kernel, self.query.shape[3], self.value.shape[3], self.dtype, self.query.device)
        first = 0 if tiles is not None else _fits.get(key, 0)
        readable = tuple(self.readable(x) for x in results)
        for index in range(first, len(options)):
            try:
                with _on(self.query):
                    launch(*readable, options[index])
            except triton.OutOfResources:
                if index + 1 == len(options):
                    raise
                continue
            if tiles is None:
                _fits[key] = index
            break
        return tuple(x.to(self.dtype) for x in readable)

    def launch(self, kernel: Any, queue: _Queue, arguments: tuple[Any, ...], tiles: Tiles) -> None:
        """The kernel, and its repair of the items in which it found a NaN; without any, that ends at once."""
        constants = self.constants(tiles)
        quota = queue.num_items if self.schedule.quota is None else self.schedule.quota
        kernel[(queue.num_programs,)](*arguments, quota, **constants, REPAIR=False)
        kernel[(_num_programs(self.query.device, queue.num_items),)](
            *arguments, queue.num_items, **constants, REPAIR=True
        )

    def queue(self, lists: TileLists, num_heads: int, heads_at_once: int) -> _Queue:
        """The lines of all heads as work items."""
        num_all_heads = self.query.shape[0] * num_heads
        num_items = num_all_heads * lists.num_lines
        section = next(n for n in range(min(heads_at_once, num_all_heads), 0, -1) if num_all_heads % n == 0)
        arguments = (num_items, num_heads, self.group, section, lists.num_lines, lists.num_blocks)
        num_programs = self.schedule.programs or _num_programs(self.query.device, num_items)
        return _Queue(num_items, min(num_items, num_programs), arguments)

    def lists_arguments(self, lists: TileLists, queue: _Queue) -> tuple[Tensor, ...]:
        """Columns, lists, counts, order, and the state of the queue."""
        order = lists.order if self.schedule.reorder is None else self.schedule.reorder(lists.order)
        state = torch.zeros(3 + queue.num_items, dtype=torch.int32, device=self.query.device)
        return tile_lists.columns(self.options.mask), lists.lists, lists.counts, order, state

    def mask_arguments(self, lists: TileLists) -> tuple[int, int, int]:
        """How batch rows and heads lead to the columns and the lists."""
        mask = self.options.mask
        columns_per_batch = mask.num_heads if mask.batch > 1 else 0
        lists_per_batch = mask.num_heads if len(lists.lists) > mask.num_heads else 0
        return columns_per_batch, lists_per_batch, self.query.shape[2] // mask.num_heads

    def precision(self) -> str:
        """How float32 matrices are multiplied: in three TF32 products, whose error is about that of float32, unless
        torch is told that one will do (``torch.set_float32_matmul_precision``)."""
        if torch.get_float32_matmul_precision() != "highest":
            return "tf32"
        return "ieee" if torch.version.hip else "tf32x3"

    def constants(self, tiles: Tiles) -> dict[str, object]:
        """What a kernel is compiled for."""
        constants = {
            "CAUSAL": self.options.mask.causal,
            "NUM_BOUNDS": self.options.mask.bounds.shape[3],
            "DROPOUT": self.options.dropout is not None,
            "BLOCK_Q": tiles.rows,
            "BLOCK_K": tiles.keys,
            "DIM": self.query.shape[3],
            "VALUE_DIM": self.value.shape[3],
            "BLOCK_D": padded(self.query.shape[3]),
            "BLOCK_DV": padded(self.value.shape[3]),
            "PRECISION": self.precision(),
        }
        return constants if INTERPRETED else {**constants, "num_warps": tiles.num_warps, "num_stages": tiles.num_stages}


def _num_programs(device: torch.device, num_items: int) -> int:
    """As many as the device holds at once."""
    if INTERPRETED:
        return 1
    properties = torch.get_device_module(device).get_device_properties(device)
    return min(num_items, properties.multi_processor_count * PROGRAMS_PER_PROCESSOR)


def _dropout_arguments(dropout: Dropout) -> tuple[int, int, int, float]:
    """Low and high word of the hash's seed, the threshold, and the factor of the kept weights; words as int32."""
    seed = _mix64(_mix64(dropout.seed & _WORD64) ^ dropout.offset & _WORD64)
    low, high, threshold = (_int32(x) for x in (seed & 0xFFFFFFFF, seed >> 32, dropout.threshold))
    return low, high, threshold, dropout.scale


def _mix64(z: int) -> int:
    z = (z + 0x9E3779B97F4A7C15) & _WORD64
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & _WORD64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & _WORD64
    return z ^ z >> 31


def _int32(word: int) -> int:
    return word - 2**32 if word >> 31 else word
