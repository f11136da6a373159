"""The header ``native/oarlock.h`` in ctypes: its ABI number, structures and functions."""

from __future__ import annotations

import ctypes

ABI = 15
"""``OARLOCK_ABI`` of the header that this file mirrors."""


class ColumnMask(ctypes.Structure):
    """Column masks of one shape: see ``oarlock_column_mask`` in the C header."""

    _fields_ = [
        ("bounds", ctypes.c_void_p),
        ("num_masks", ctypes.c_int64),
        ("seqlen_q", ctypes.c_int64),
        ("seqlen_k", ctypes.c_int64),
        ("num_bounds", ctypes.c_int32),
        ("causal", ctypes.c_int32),
    ]


class Vectors(ctypes.Structure):
    """A tensor [batch, tokens, heads, dim]: see ``oarlock_vectors`` in the C header."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("batch_stride", ctypes.c_int64),
        ("token_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("dim_stride", ctypes.c_int64),
    ]


class Attention(ctypes.Structure):
    """Sizes, mask and options of a call: see ``oarlock_attention`` in the C header."""

    _fields_ = [
        ("mask", ColumnMask),
        ("mask_batch", ctypes.c_int64),
        ("mask_heads", ctypes.c_int64),
        ("block_mask", ctypes.c_void_p),
        ("block_mask_batch", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("seqlen_q", ctypes.c_int64),
        ("seqlen_k", ctypes.c_int64),
        ("num_heads_q", ctypes.c_int64),
        ("num_heads_k", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("value_dim", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("dropout_threshold", ctypes.c_uint32),
        ("dropout_scale", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("dtype", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        ("deterministic", ctypes.c_int32),
    ]


class Heads(ctypes.Structure):
    """Vectors of a token's heads in memory: see ``oarlock_heads`` in the C header."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("token_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
    ]


class Rotation(ctypes.Structure):
    """Angles and sizes of a rotary embedding: see ``oarlock_rotation`` in the C header."""

    _fields_ = [
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("num_angles", ctypes.c_int64),
        ("num_tokens", ctypes.c_int64),
        ("num_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
    ]


class PoolConfig(ctypes.Structure):
    """What a memory pool is opened with: see ``oarlock_pool_config`` in the C header."""

    _fields_ = [
        ("capacity", ctypes.c_uint64),
        ("soft_capacity", ctypes.c_uint64),
        ("page_bytes", ctypes.c_uint64),
        ("reserve_factor", ctypes.c_uint64),
        ("driver", ctypes.c_int32),
        ("device", ctypes.c_int32),
    ]


class PoolStats(ctypes.Structure):
    """Figures of a memory pool: see ``oarlock_pool_stats`` in the C header."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "capacity_bytes",
            "page_bytes",
            "reserved_bytes",
            "peak_reserved_bytes",
            "spare_bytes",
            "live_bytes",
            "peak_live_bytes",
            "requested_bytes",
            "free_bytes",
            "stranded_bytes",
            "blocked_bytes",
            "pinned_bytes",
            "held_bytes",
            "asleep_bytes",
            "lost_bytes",
            "num_live",
            "num_free",
            "num_holes",
            "num_allocations",
            "num_frees",
            "num_moves",
            "moved_pages",
            "num_rollbacks",
            "num_not_created",
            "num_pressure_calls",
            "num_waits",
            "num_out_of_memory",
            "num_ordered",
        )
    ]


class PoolBlock(ctypes.Structure):
    """A block of a memory pool: see ``oarlock_pool_block`` in the C header."""

    _fields_ = [
        ("addr", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("requested", ctypes.c_uint64),
        ("stream", ctypes.c_uint64),
        ("mapped_pages", ctypes.c_uint64),
        ("stack", ctypes.c_uint32),
        ("name", ctypes.c_uint32),
        ("tag", ctypes.c_uint32),
        ("pins", ctypes.c_uint32),
        ("state", ctypes.c_int32),
        ("blocked", ctypes.c_int32),
    ]


class ReplayConfig(ctypes.Structure):
    """An allocator to replay a trace against: see ``oarlock_replay_config`` in the C header."""

    _fields_ = [
        ("capacity", ctypes.c_uint64),
        ("page_bytes", ctypes.c_uint64),
        ("lag", ctypes.c_uint64),
        ("allocator", ctypes.c_int32),
    ]


REPLAY_FIGURES = (
    "failed_at",
    "peak_reserved_bytes",
    "mapped_bytes",
    "unmapped_bytes",
    "copied_bytes",
    "num_device_syncs",
    "num_stream_syncs",
    "num_rounds",
)


class ReplayResult(ctypes.Structure):
    """What the allocator did: see ``oarlock_replay_result`` in the C header."""

    _fields_ = [(name, ctypes.c_int64) for name in REPLAY_FIGURES]


PRESSURE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64)
"""``oarlock_pressure`` in the C header."""

_HEADS, _ROTATION = ctypes.POINTER(Heads), ctypes.POINTER(Rotation)

SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "oarlock_version": (ctypes.c_char_p, []),
    "oarlock_isa": (ctypes.c_char_p, []),
    "oarlock_keep_freed_memory": (ctypes.c_int32, []),
    "oarlock_mask_visible_per_row": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32],
    ),
    "oarlock_mask_visible_per_tile": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32],
    ),
    "oarlock_mask_visible_per_key": (
        ctypes.c_int,
        [ctypes.c_void_p, *[ctypes.c_int64] * 5, ctypes.c_void_p],
    ),
    "oarlock_mask_row_spans": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32],
    ),
    "oarlock_mask_bias": (
        ctypes.c_int,
        [ctypes.c_void_p, *[ctypes.c_int64] * 5, ctypes.c_void_p],
    ),
    "oarlock_attention_forward": (
        ctypes.c_int,
        [ctypes.c_void_p] * 6,
    ),
    "oarlock_attention_backward": (
        ctypes.c_int,
        [ctypes.c_void_p] * 11,
    ),
    "oarlock_rms_norm": (
        ctypes.c_int,
        [*[ctypes.c_void_p] * 3, ctypes.c_float, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2, ctypes.c_int32],
    ),
    "oarlock_rms_norm_backward": (
        ctypes.c_int,
        [*[ctypes.c_void_p] * 7, *[ctypes.c_int64] * 2, ctypes.c_int32],
    ),
    "oarlock_swiglu": (
        ctypes.c_int,
        [*[ctypes.c_void_p, ctypes.c_int64] * 3, *[ctypes.c_int64] * 2, ctypes.c_int32],
    ),
    "oarlock_swiglu_backward": (
        ctypes.c_int,
        [*[ctypes.c_void_p, ctypes.c_int64] * 5, *[ctypes.c_int64] * 2, ctypes.c_int32],
    ),
    "oarlock_softmax_cross_entropy": (
        ctypes.c_int,
        [
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p, ctypes.c_int32),
            *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32),
        ],
    ),
    "oarlock_rope": (
        ctypes.c_int,
        [_ROTATION, _HEADS, _HEADS, *[ctypes.c_int32] * 3],
    ),
    "oarlock_norm_rope": (
        ctypes.c_int,
        [_ROTATION, _HEADS, ctypes.c_void_p, ctypes.c_float, ctypes.c_void_p, _HEADS, ctypes.c_int32],
    ),
    "oarlock_norm_rope_backward": (
        ctypes.c_int,
        [_ROTATION, _HEADS, _HEADS, *[ctypes.c_void_p] * 2, _HEADS, ctypes.c_void_p, ctypes.c_int32],
    ),
    "oarlock_digest_chunk_sums": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_void_p] * 2, ctypes.c_int32],
    ),
    "oarlock_digest_content": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_uint64, *[ctypes.c_void_p] * 2],
    ),
    "oarlock_pool_message": (ctypes.c_char_p, []),
    "oarlock_pool_open": (ctypes.c_int, [ctypes.POINTER(PoolConfig), ctypes.POINTER(ctypes.c_void_p)]),
    "oarlock_pool_close": (ctypes.c_int, [ctypes.c_void_p]),
    "oarlock_pool_malloc": (
        ctypes.c_int,
        [ctypes.c_void_p, *[ctypes.c_uint64] * 2, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint64)],
    ),
    "oarlock_pool_free": (ctypes.c_int, [ctypes.c_void_p, *[ctypes.c_uint64] * 2]),
    "oarlock_pool_record_stream": (ctypes.c_int, [ctypes.c_void_p, *[ctypes.c_uint64] * 2]),
    "oarlock_pool_pin": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p]),
    "oarlock_pool_unpin": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64]),
    "oarlock_pool_sleep": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int32]),
    "oarlock_pool_wake": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint32]),
    "oarlock_pool_trim": (ctypes.c_int, [ctypes.c_void_p]),
    "oarlock_pool_allow_peer": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int32]),
    "oarlock_pool_set_pressure": (ctypes.c_int, [ctypes.c_void_p, PRESSURE, ctypes.c_void_p]),
    "oarlock_pool_dlpack": (
        ctypes.c_int,
        [ctypes.c_void_p, *[ctypes.c_uint64] * 2, ctypes.POINTER(ctypes.c_void_p)],
    ),
    "oarlock_pool_largest": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint64)],
    ),
    "oarlock_pool_fits": (
        ctypes.c_int,
        [
            ctypes.c_void_p,
            *(ctypes.POINTER(ctypes.c_uint64), ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint32),
            ctypes.POINTER(ctypes.c_int32),
        ],
    ),
    "oarlock_pool_get_stats": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(PoolStats)]),
    "oarlock_pool_walk": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.POINTER(PoolBlock), ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)],
    ),
    "oarlock_pool_record": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64]),
    "oarlock_pool_context": (None, [ctypes.c_uint32] * 2),
    "oarlock_pool_annotate": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint8]),
    "oarlock_pool_snapshot": (
        ctypes.c_int,
        [
            *(ctypes.c_void_p, ctypes.c_uint64),
            *(ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_int64)),
            *(ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)),
        ],
    ),
    "oarlock_pool_streams": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64), ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)],
    ),
    "oarlock_pool_check": (ctypes.c_int, [ctypes.c_void_p]),
    "oarlock_pool_fail_calls": (ctypes.c_int, [ctypes.c_void_p, *[ctypes.c_uint64] * 2]),
    "oarlock_pool_num_calls": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)]),
    "oarlock_pool_sim_hold": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int32]),
    "oarlock_torch_attach": (ctypes.c_int, [ctypes.c_int32, ctypes.c_void_p]),
    "oarlock_torch_malloc": (ctypes.c_void_p, [ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p]),
    "oarlock_torch_free": (None, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int32, ctypes.c_void_p]),
    "oarlock_torch_record_stream": (None, [ctypes.c_void_p] * 2),
    "oarlock_replay": (
        ctypes.c_int,
        [
            *[ctypes.c_void_p] * 4,
            ctypes.c_int64,
            ctypes.POINTER(ReplayConfig),
            ctypes.POINTER(ReplayResult),
        ],
    ),
}
